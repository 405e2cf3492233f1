"""Blocks of the OptINC study."""

from __future__ import annotations

from docs.figures.parts import Block, Cell, Figure, Picture, Table, Verdict, of, simulated
from docs.figures.words import ratio, seconds

TRAIN = "job train"
_ONE, _TWO = "fabrics.one.averaging.servers", "fabrics.two.averaging.servers"
_LAYERS = "fabrics.one.averaging.approximated"


def _at(arm: str, metric: str, servers: int, path: str = _ONE) -> Figure:
    return simulated(arm, metric, TRAIN, {path: servers})


def _times(ring: float, ours: float) -> str:
    return f"{ring / ours:.2f}"


def _line(arms: tuple[str, ...], servers: int, path: str) -> list[Cell]:
    """Times of arms, how often the first goes into the rings', bytes over payload."""
    first, *others = arms
    rings = [arm for arm in others if arm.startswith("ring")]
    return [
        str(servers),
        *(of(seconds, _at(arm, "allreduce", servers, path)) for arm in arms),
        *(of(_times, *(_at(one, "allreduce", servers, path) for one in (arm, first))) for arm in rings),
        *(of(ratio, _at(arm, "port_sent_over_payload", servers, path)) for arm in (first, *rings)),
    ]


def _saved(ours: float, ring: float) -> str:
    return f"{100 * (1 - ours / ring):.1f} %"


def _latency(model: str, said: str, published: str) -> list[list[Cell]]:
    lines: list[list[Cell]] = []
    for n in (4, 8, 16):
        lines.append(
            [
                said,
                str(n),
                *(of(seconds, _at(f"{arm}-{model}", "iteration_ideal", n)) for arm in ("optinc", "ring")),
                of(_saved, *(_at(f"{arm}-{model}", "iteration_ideal", n) for arm in ("optinc", "ring"))),
                of(_saved, *(_at(f"{arm}-{model}", "iteration", n) for arm in ("optinc", "ring"))),
                published if n == 4 else "",
                of(lambda share: f"{100 * share:.0f} %", _at(f"ring-{model}", "communication_share", n)),
                of(lambda work: f"{work / 1e9:.2f} GFLOP", _at(f"ring-{model}", "work", n)),
                "fitted" if n == 4 else "not comparable",
            ]
        )
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _published(share: float) -> str:
    return f"{100 * share:.1f} %"


def _area(arm: str, said: str, path: str, value: str | int) -> list[Cell]:
    point = {path: value}
    mean = {path: f"mean of {value}"}
    theirs = Figure("simulated", arm, "unit_area.mean", TRAIN, mean, published=True)
    ours = simulated(arm, "unit_area", TRAIN, point)
    return [
        said,
        of(lambda count: f"{count:,}", simulated(arm, "unit_mzis", TRAIN, point)),
        of(_percent, ours),
        of(_published, theirs),
        of(lambda a, b: f"{100 * (a - b):+.2f}".replace("-", "−"), ours, theirs),
        of(_percent, simulated(arm, "network_area", TRAIN, point)),
        of(_percent, simulated(arm, "unit_area_biased", TRAIN, point)),
    ]


_ARMS = ("optinc", "ring", "ring-bits")
_TWO_ARMS = ("optinc-cascade", "optinc-dropped", "ring-cascade", "ring-bits-cascade")

BLOCKS: dict[str, Block] = {
    "picture-optinc-averagers": Picture(
        "optinc",
        "simulated",
        "averagers-one-level",
        "optinc-averagers.png",
        "Four servers with an averager and with a packet switch, and the bytes on every link",
    ),
    "picture-optinc-cascade": Picture(
        "optinc",
        "simulated",
        "averagers-two-levels",
        "optinc-cascade.png",
        "Sixteen servers on five averagers, and the bytes on every link",
    ),
    "picture-optinc-time": Picture(
        "optinc",
        "simulated",
        "series-1-allreduce",
        "optinc-time.png",
        "Time of an all-reduce over the number of servers, with an averager and on rings",
    ),
    "picture-optinc-latency": Picture(
        "optinc",
        "simulated",
        "series-3-iteration_ideal",
        "optinc-latency.png",
        "An iteration by the paper's model over the number of servers, with the computing of two models",
    ),
    "picture-optinc-mesh": Picture(
        "optinc",
        "simulated",
        "meshes",
        "optinc-mesh.png",
        "Two meshes of the trained network with their phases as colours",
    ),
    "optinc-one": Table(
        "optinc",
        "servers | OptINC | ring, same payload | ring of 8-bit numbers | ring over OptINC | 8-bit ring over OptINC "
        "| bytes over payload: OptINC | ring | 8-bit ring",
        [_line(_ARMS, n, _ONE) for n in (4, 6, 8, 10, 12, 14, 16)],
    ),
    "optinc-two": Table(
        "optinc",
        "servers | OptINC, Eq. 10 | Eq. 9 | ring, same payload | ring of 8-bit numbers | ring over Eq. 10 "
        "| 8-bit ring over Eq. 10 | bytes over payload: OptINC | ring | 8-bit ring",
        [_line(_TWO_ARMS, n, _TWO) for n in (16, 64, 256)],
    ),
    "optinc-latency": Table(
        "optinc",
        "computing of | servers | OptINC, model | ring, model | saved | saved, simulated | paper | "
        "ring's communication | work | ",
        [*_latency("resnet", "ResNet-50", "> 25 %"), *_latency("llama", "LLaMA", "~ 17 %")],
    ),
    "optinc-area": Table(
        "optinc",
        "unit | MZIs | area | the paper's | difference, points | without P and T | with the light of biases",
        [
            *(_area("unit-8", f"8 bits, {n} servers (Table I)", _ONE, n) for n in (4, 8, 16)),
            *(
                _area("unit-16", f"16 bits, 4 servers, layers {layers} (Table II)", _LAYERS, layers)
                for layers in ("4-6", "4-7", "4-8", "3-6", "3-7")
            ),
        ],
    ),
    "optinc-verdict": Verdict("optinc", "simulated"),
}
