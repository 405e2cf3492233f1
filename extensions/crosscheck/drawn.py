"""Draws experiments by chance, for a test of predictions that nobody could tune to them.

Every experiment is an arm of one scenario, on a fabric of its own: a tree of packet switches, several paths
between leaves, one or two optical switches between GPUs and packet switches, a grid or a ring of wavelengths;
with equal or unequal rates, one or two jobs, and where the kind allows it a cut cable or moved light in the
middle. Of five kinds of trees bytes over a NIC's rate say little: with thin uplinks, with queues of a few
frames, with uplinks that delay, with messages of a few frames, and with three jobs of a collective each.
Rates as emulated are what two processors carry: at most ``MOST_BPS`` of all NICs together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import yaml

from ringlight.fabric.frames import ETHERNET_BYTES, LARGEST_MTU_BYTES
from ringlight.fabric.keys import fabric_keys
from ringlight.fabric.schema import LinkSpec

#: Payload of all NICs together, bits per second as emulated.
MOST_BPS = 260e6
#: Seconds that a ring's all-reduce takes at the rate of a NIC, and as much computing as a part of that, as
#: emulated: long beside late timers and beside what a machine takes for a step.
ALL_REDUCE_S, COMPUTE_PART = (0.3, 0.8), (0.2, 1.0)
#: Seconds of emulated time that a queue holds at its link's rate: many frames of 9000 bytes.
QUEUE_S = (0.15, 0.3)
#: TCP's least time-out: longer than the round trip of a connection whose queues are shared both ways, and
#: short beside an iteration. (10 ms, as first drawn, struck though nothing was lost.)
RTO_MIN = "50 ms"
#: All-reduces of harder trees, as ``ALL_REDUCE_S``: over thin uplinks they take several times as long.
THIN_S, FAR_S, SMALL_S = (0.1, 0.25), (0.2, 0.5), (0.06, 0.15)
#: Frames that a shallow queue holds, and seconds by which an uplink delays, as emulated.
SHALLOW_FRAMES, DELAY_S = (5, 12), (0.005, 0.04)
_GPU = "gpu"
_FRAME_BYTES = LARGEST_MTU_BYTES + ETHERNET_BYTES
Part = dict[str, Any]


class _Draw:
    """The draws that all kinds of an experiment share; ``nic_bps``: a NIC's rate, real.

    ``all_reduce_s``: between which times a ring's all-reduce at the rate of a NIC is, as emulated.
    """

    def __init__(
        self,
        random: Random,
        gpus: int,
        all_reduce_s: tuple[float, float] = ALL_REDUCE_S,
    ) -> None:
        self.random, self.all_reduce_s = random, all_reduce_s
        self.time, self.payload = (
            random.choice((4, 10, 20)),
            random.choice((10, 20, 40)),
        )
        most_bps = min(60e6, MOST_BPS / gpus)
        emulated_bps = random.uniform(most_bps / 2, most_bps)
        self.nic_bps = round(emulated_bps * self.time * self.payload, -8)
        self.queue = f"{random.uniform(*QUEUE_S) / self.time * 1e3:.1f} ms"
        self.uneven = random.random() < 0.5

    def rate(self, part: float = 1.0) -> str:
        """Return a rate with its unit, as a share of a NIC's rate."""
        return f"{self.nic_bps * part / 1e9:.2f} Gbit/s"

    def link(self, a: str, b: str, part: float = 1.0) -> Part:
        return {"ends": [a, b], "rate": self.rate(part), "queue": self.queue}

    def nic(self, gpu: str, port: str) -> Part:
        """Return a GPU's link. In an uneven fabric the link has half the rate with probability 1/3."""
        slow = self.uneven and self.random.random() < 1 / 3
        return self.link(gpu, port, 0.5 if slow else 1.0)

    def jobs(self, names: Sequence[str], collectives: Sequence[str]) -> dict[str, Part]:
        """Return one job, or two that share no GPU, each on at least two GPUs in any order."""
        order = self.random.sample(list(names), len(names))
        if len(order) >= 4 and self.random.random() < 0.5:
            cut = self.random.randint(2, len(order) - 2)
            parts = {"red": order[:cut], "blue": order[cut:]}
        else:
            parts = {"red": order}
        return {name: self.job(ranks, collectives) for name, ranks in parts.items()}

    def job(self, ranks: Sequence[str], collectives: Sequence[str]) -> Part:
        able = [
            name
            for name in collectives
            if name not in OF_POWERS or len(ranks) & (len(ranks) - 1) == 0
        ]
        all_reduce_s = self.random.uniform(*self.all_reduce_s)
        sent = 2 * (len(ranks) - 1) / len(ranks)
        gradient = all_reduce_s * self.nic_bps / self.time / 8 / sent
        compute_s = self.random.uniform(*COMPUTE_PART) * all_reduce_s / self.time
        return {
            "ranks": list(ranks),
            "training": {
                "model": "resnet50",
                "gradient": f"{gradient / 1e6:.1f} MB",
                "compute": f"{compute_s * 1e3:.1f} ms",
                "batch": 16,
                "iterations": self.random.randint(3, 5),
                "collective": self.random.choice(able),
            },
        }


#: Collectives that only so many ranks as a power of two can do.
OF_POWERS = ("halving-doubling", "recursive-doubling")
_ON_PACKETS = (
    "ring",
    "halving-doubling",
    "recursive-doubling",
    "binary-tree",
    "bidirectional-ring",
)


def _half_way(job: Part, name: str) -> Part:
    return {"job": name, "iteration": job["training"]["iterations"] // 2}


def _tree(random: Random) -> tuple[_Draw, Part, dict[str, Part], list[Part]]:
    """Leaves under one packet switch."""
    leaves, each = random.randint(2, 3), random.randint(2, 4)
    draw = _Draw(random, leaves * each)
    fabric = _leaves(draw, leaves, each, random.choice((1.0, 1.5, 2.0)))
    return (
        draw,
        fabric,
        draw.jobs([f"g{k}" for k in range(leaves * each)], _ON_PACKETS),
        [],
    )


def _leaves(draw: _Draw, leaves: int, each: int, narrow: float, **uplink: str) -> Part:
    """So many GPUs under each leaf, whose uplink has an ``narrow``-th of half of their rates."""
    names = [f"g{k}" for k in range(leaves * each)]
    links = [
        draw.nic(gpu, f"leaf{k // each}:{k % each + 1}") for k, gpu in enumerate(names)
    ]
    links += [
        {
            **draw.link(f"leaf{k}:{each + 1}", f"root:{k + 1}", each / narrow / 2),
            **uplink,
        }
        for k in range(leaves)
    ]
    return {
        "servers": {f"s{k}": {"gpus": {gpu: _GPU}} for k, gpu in enumerate(names)},
        "packet_switches": {
            "root": {"ports": leaves},
            **{f"leaf{k}": {"ports": each + 1} for k in range(leaves)},
        },
        "links": links,
    }


def _thin(random: Random) -> tuple[_Draw, Part, dict[str, Part], list[Part]]:
    """Uplinks with an eighth to a quarter of the rates under them."""
    each = random.randint(2, 4)
    draw = _Draw(random, 2 * each, THIN_S)
    fabric = _leaves(draw, 2, each, random.choice((2.0, 3.0, 4.0)))
    return draw, fabric, draw.jobs([f"g{k}" for k in range(2 * each)], _ON_PACKETS), []


def _shallow(random: Random) -> tuple[_Draw, Part, dict[str, Part], list[Part]]:
    """Queues of a few frames at every link."""
    each = random.randint(2, 4)
    draw = _Draw(random, 2 * each, FAR_S)
    narrow = random.choice((1.0, 1.5, 2.0))
    # Of the slowest link, which an uneven fabric's NIC may be.
    slowest_bps = draw.nic_bps * min(0.5, each / narrow / 2) / draw.time / draw.payload
    queue_s = random.randint(*SHALLOW_FRAMES) * 8 * _FRAME_BYTES / slowest_bps
    draw.queue = f"{1e3 * queue_s / draw.time:.2f} ms"
    fabric = _leaves(draw, 2, each, narrow)
    return draw, fabric, draw.jobs([f"g{k}" for k in range(2 * each)], _ON_PACKETS), []


def _far(random: Random) -> tuple[_Draw, Part, dict[str, Part], list[Part]]:
    """Uplinks that delay frames, where an extension has links that do."""
    each = random.randint(2, 3)
    draw = _Draw(random, 2 * each, FAR_S)
    delay_s = random.uniform(*DELAY_S) / draw.time
    more = (
        {"delay": f"{1e3 * delay_s:.3f} ms"} if "delay" in LinkSpec.model_fields else {}
    )
    fabric = _leaves(draw, 2, each, random.choice((1.0, 2.0)), **more)
    return draw, fabric, draw.jobs([f"g{k}" for k in range(2 * each)], _ON_PACKETS), []


def _small(random: Random) -> tuple[_Draw, Part, dict[str, Part], list[Part]]:
    """Messages of a few frames."""
    each = random.randint(2, 4)
    draw = _Draw(random, 2 * each, SMALL_S)
    fabric = _leaves(draw, 2, each, random.choice((1.0, 2.0)))
    return draw, fabric, draw.jobs([f"g{k}" for k in range(2 * each)], _ON_PACKETS), []


def _mixed(random: Random) -> tuple[_Draw, Part, dict[str, Part], list[Part]]:
    """Three jobs whose ranks are under all leaves, each with a collective of its own."""
    draw = _Draw(random, 8, THIN_S)
    names = random.sample([f"g{k}" for k in range(8)], 8)
    jobs: dict[str, Part] = {}
    for name, ranks in zip(
        ("red", "blue", "green"), (names[:4], names[4:6], names[6:]), strict=True
    ):
        taken = {job["training"]["collective"] for job in jobs.values()}
        jobs[name] = draw.job(
            ranks, [collective for collective in _ON_PACKETS if collective not in taken]
        )
    return draw, _leaves(draw, 2, 4, random.choice((1.0, 2.0, 3.0))), jobs, []


def _paths(random: Random) -> tuple[_Draw, Part, dict[str, Part], list[Part]]:
    """Two leaves under several spines; sometimes a cable is cut."""
    each, spines = random.randint(2, 4), random.randint(2, 3)
    draw = _Draw(random, 2 * each)
    fabric = {
        "paths": random.choice(("even", "hash")),
        "leaf_spine": {
            "leaves": 2,
            "spines": spines,
            "gpus_per_leaf": each,
            "gpu": _GPU,
            "rate": draw.rate(),
            "uplink_rate": draw.rate(random.choice((0.5, 0.75, 1.0))),
            "queue": draw.queue,
        },
    }
    jobs = draw.jobs([f"g{k}" for k in range(2 * each)], _ON_PACKETS)
    events = []
    if random.random() < 0.5:
        when = _half_way(jobs["red"], "red")
        cable = f"link leaf{random.randrange(2)}:{each + 1} spine0"
        port = int(cable[9]) + 1
        events.append(
            {"name": "cut", "when": when, "do": "cut", "target": f"{cable}:{port}"}
        )
    return draw, fabric, jobs, events


def _optical(
    random: Random, switches: int
) -> tuple[_Draw, Part, dict[str, Part], list[Part]]:
    """GPUs behind optical switches, each lit to one of two packet switches; sometimes light is moved."""
    count = 2 * random.randint(2, 4)
    draw = _Draw(random, count)
    names = [f"g{k}" for k in range(count)]
    uplink = draw.link(
        f"tor0:{count + 1}", f"tor1:{count + 1}", random.choice((0.5, 1.0, 1.5))
    )
    links, of = [], {}
    for k in range(count):
        # GPUs and ports of both packet switches are dealt out to the optical switches in turn.
        ocs, first_port = f"ocs{k % switches}", 3 * (k // switches)
        links.append(draw.nic(names[k], f"{ocs}:{first_port + 1}"))
        links += [
            draw.link(f"tor{t}:{k + 1}", f"{ocs}:{first_port + 2 + t}")
            for t in range(2)
        ]
        of[names[k]] = ocs
    circuits = []
    for ocs in sorted(set(of.values())):
        mine = [k for k in range(count) if of[names[k]] == ocs]
        ports = [f"tor{t}:{k + 1}" for k in mine for t in range(2)]
        circuits += [
            [names[k], port]
            for k, port in zip(mine, random.sample(ports, len(mine)), strict=True)
        ]
    fabric = {
        "servers": {f"s{k}": {"gpus": {gpu: _GPU}} for k, gpu in enumerate(names)},
        "packet_switches": {f"tor{t}": {"ports": count + 1} for t in range(2)},
        "optical_switches": {
            f"ocs{k}": {
                "size": 3 * (count // switches),
                "driver": "scpi",
                "profile": "mems",
            }
            for k in range(switches)
        },
        "links": [*links, uplink],
        "circuits": circuits,
    }
    when = random.choice(("never", "start", "half way"))
    # The controller regroups rings.
    jobs = draw.jobs(names, _ON_PACKETS if when == "never" else ("ring",))
    moments: dict[str, Any] = {
        "start": "start",
        "half way": _half_way(jobs["red"], "red"),
    }
    return (
        draw,
        fabric,
        jobs,
        [{"when": moments[when], "do": "regroup"}] if when in moments else [],
    )


def _grid(random: Random) -> tuple[_Draw, Part, dict[str, Part], list[Part]]:
    """Nodes in rows and columns of wavelength-selective switches."""
    rows, columns = random.choice(((2, 2), (2, 4), (1, 4)))
    draw = _Draw(random, rows * columns)
    grid = {
        "rows": rows,
        "columns": columns,
        "gpu": _GPU,
        "rate": draw.rate(),
        "queue": draw.queue,
        "wavelengths": 4,
        "wss": {"profile": "ideal"},
    }
    nodes = [f"n{k}" for k in range(rows * columns)]
    jobs = {"red": draw.job(nodes, ("halving-doubling", "recursive-doubling"))}
    return draw, {"grids": {"n": grid}}, jobs, []


def _ring(random: Random) -> tuple[_Draw, Part, dict[str, Part], list[Part]]:
    """Nodes on a ring of wavelengths whose switches are set between steps."""
    nodes, wavelengths = random.randint(4, 8), random.randint(1, 3)
    draw = _Draw(random, nodes)
    ring = {
        "nodes": nodes,
        "gpu": _GPU,
        "rate": draw.rate(),
        "queue": draw.queue,
        "wavelengths": wavelengths,
        "wss": {"driver": "scpi", "profile": "mrr"},
    }
    jobs = {
        "red": draw.job(
            [f"r{k}" for k in range(nodes)], ("ring", "wrht", "binary-tree")
        )
    }
    return draw, {"rings": {"r": ring}}, jobs, []


class DrawnKind(NamedTuple):
    """``draw``: returns the random choices, the fabric, the jobs and the events of an experiment. ``key``: of
    the fabric file, if it comes with an extension."""

    draw: Callable[[Random], tuple[_Draw, Part, dict[str, Part], list[Part]]]
    key: str = ""


KINDS: Mapping[str, DrawnKind] = {
    "tree": DrawnKind(_tree),
    "paths": DrawnKind(_paths),
    "ocs": DrawnKind(lambda random: _optical(random, 1)),
    "two-ocs": DrawnKind(lambda random: _optical(random, 2)),
    "grid": DrawnKind(_grid, "grids"),
    "ring": DrawnKind(_ring, "rings"),
    "thin": DrawnKind(_thin),
    "shallow": DrawnKind(_shallow),
    "far": DrawnKind(_far),
    "small": DrawnKind(_small),
    "mixed": DrawnKind(_mixed),
}


def drawn_kinds() -> list[str]:
    """Return the kinds that are drawn here: those whose keys of the fabric file there are."""
    keys = fabric_keys()
    return [name for name, kind in KINDS.items() if not kind.key or kind.key in keys]


def kind_of(arm: str) -> str:
    """Return the kind of fabric of an arm's experiment."""
    return arm.rpartition("-")[0]


def scenario_of(experiments: int, seed: int) -> str:
    """Return the scenario file of this many experiments, whose kinds take turns.

    A smaller number of experiments gives the first ones of a larger number.
    """
    kinds_here = drawn_kinds()
    fabrics, arms = {}, {}
    for number in range(experiments):
        kind = kinds_here[number % len(kinds_here)]
        draw, fabric, jobs, events = KINDS[kind].draw(Random(f"{seed}-{number}"))
        name = f"{kind}-{number:03d}"
        fabrics[name] = {"title": name, **fabric}
        arms[name] = {
            "title": name,
            "fabric": name,
            "scale": {"time": draw.time, "payload": draw.payload},
            "jobs": jobs,
            "events": events,
        }
    return yaml.safe_dump(
        {
            "name": f"blind-{seed}",
            "description": f"{experiments} experiments drawn by chance from seed {seed}.",
            "tcp": {"congestion_control": "reno", "rto_min": RTO_MIN},
            "link_test": {"duration": "800 ms"},
            "training": {
                "model": "resnet50",
                "compute": "100 ms",
                "batch": 16,
                "iterations": 5,
            },
            "fabrics": fabrics,
            "arms": arms,
        },
        sort_keys=False,
        width=110,
    )
