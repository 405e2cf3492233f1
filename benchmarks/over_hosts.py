"""One lab over several hosts beside the same lab on one. Needs root, and Docker.

Hosts are network namespaces of this machine, each with an Open vSwitch and a Docker of its own, so all
figures are of one machine's processors. All have been checked before (``hosts check``), so that their workers
have imported what labs need: that is bring-up of a host, once in a worker's life, and no part of a lab.

``demo``: the bundled experiment over two hosts and on one. ``size``: 64 containers over four hosts and on
one. ``link``: a rate, a round trip and a dark time where they cross. ``sweep``: twelve labs on three hosts
and on one. ``kills``: what is left, and what stays, after something was killed at some moment.
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import yaml

from benchmarks.harness import RINGLIGHT, ROOT, need_root, of_jobs, show, tell, until
from ringlight.experiments.language.expand import load
from ringlight.extensions.hosts.cut import cut
from ringlight.testbed.load import machine_ticks
from tests.extensions.hosts.integration.hosts_rig import (
    SCHEDULER,
    Hosts,
    NamespaceHost,
    hosts,
    kill,
)

Runtime = Literal["docker", "namespace"]
DEMO, MINI = ROOT / "scenarios/disaggregation.yaml", ROOT / "tests/data/mini.yaml"
#: Bars: points of a reduction, shares, seconds, times the processors' time of one host.
POINTS, RATE, ROUND_TRIP_S, DARK_S, UP_S, TIMES = 3.0, 0.01, 0.2e-3, 1e-3, 60.0, 1.2
SWEEP_TIMES = 1.3
#: So long a worker may import after its host was checked, seconds.
IMPORTED_S = 12.0
#: What is killed in turns, and for how long the light is looked at then, seconds.
WHAT, LOOK_S = ("worker", "host", "network", "scheduler"), 5.0
#: When, in turns for each: after what has begun, and between so many seconds after that.
WHEN = (
    ("the command", 1.0, 6.0),
    ("the lab", 0.0, 4.0),
    ("training", 0.0, 1.0),
    ("training", 1.0, 5.0),
    ("training", 5.0, 10.0),
)
#: Longest run of a command, seconds.
COMMAND_S = 900.0
#: Where a Docker's containerd has a folder for each container.
_TASKS = "containerd/daemon/io.containerd.runtime.v2.task/moby"
#: What is not ours, and must stay.
FOREIGN = (
    "ip netns add other",
    "ip link add rlx-1 type bridge",
    "ovs-vsctl add-br other0 -- set bridge other0 datapath_type=netdev",
)


def demo(runtime: Runtime = "docker", repeat: int = 1) -> dict[str, Any]:
    """All arms of the demo. Bars: verdict not bad, parameters identical, reductions within 3 points of those
    on one host, and a regroup moves light over the cut."""
    found = _both(DEMO, runtime, 2, ("--repeat", str(repeat)))
    over = found["over"]
    one, other = (of_jobs(found[name], "jct_reduction") for name in ("one", "over"))
    reduced = {
        whose: [value, other[whose]] for whose, value in one.items() if whose in other
    }
    show(
        ("reduction of the JCT, %", "one host", "two hosts"),
        [(k, *v) for k, v in reduced.items()],
    )
    same = [
        row["value"] for row in over["rows"] if row["metric"] == "parameters_identical"
    ]
    moved = _moved_over_cut(over["events"])
    missed = [
        f"{what}: {a:.1f} and {b:.1f} %"
        for what, (a, b) in reduced.items()
        if abs(a - b) > POINTS
    ]
    missed += (
        [f"verdict {over['verdict']}: {over['reasons']}"]
        if over["verdict"] == "bad"
        else []
    )
    missed += [] if same and all(same) else ["parameters differ"]
    missed += [] if moved else ["no light moved over the cut"]
    verdicts = {name: (run["verdict"], run["reasons"]) for name, run in found.items()}
    return {
        "reductions": reduced,
        "verdicts": verdicts,
        "moved_over_cut": moved,
        "missed": missed,
    }


def size(
    number: int = 4, leaves: int = 8, gpus: int = 8, runtime: Runtime = "docker"
) -> dict[str, Any]:
    """``leaves`` packet switches of ``gpus`` GPUs each and a core, jobs that cross it. Bars: up within 60 s
    of the command, at most 1.2 times the processors' time of one host."""
    with tempfile.TemporaryDirectory(prefix="ringlight-hosts-") as folder:
        scenario = Path(folder, "size.yaml")
        scenario.write_text(yaml.safe_dump(_many(leaves, gpus)), encoding="utf-8")
        found = _both(scenario, runtime, number, (), leaves * gpus)
    keys = ("up_s", "up_processor_s", "whole_s", "processor_s", "verdict")
    show(
        ("", "one host", f"{number} hosts"),
        [(k, found["one"][k], found["over"][k]) for k in keys],
    )
    times = found["over"]["processor_s"] / found["one"]["processor_s"]
    up_s = found["over"]["up_s"]
    missed = [] if up_s is not None and up_s <= UP_S else [f"up after {up_s} s"]
    missed += (
        [f"{times:.2f} times the processors' time of one host"] if times > TIMES else []
    )
    kept = {
        name: {key: run[key] for key in (*keys, "reasons")}
        for name, run in found.items()
    }
    return {**kept, "times": times, "missed": missed}


def link(rounds: int = 3) -> dict[str, Any]:
    """The link between two packet switches, on one host and over two. Bars: rate within 1 %, round trip
    within 0.2 ms, dark time within 1 ms, medians of ``rounds``."""
    with tempfile.TemporaryDirectory(prefix="ringlight-hosts-") as folder:
        scenario = Path(folder, "link.yaml")
        scenario.write_text(yaml.safe_dump(_quiet()), encoding="utf-8")
        found: dict[str, dict[str, list[float]]] = {"one": {}, "over": {}}
        for _ in range(rounds):
            made = _both(scenario, "namespace", 2, (), watch=_pinged)
            for name, run in made.items():
                rates = [
                    r["measured_bps"]
                    for r in run["events"]
                    if r.get("link") == "tor0:3 - tor1:3"
                ]
                dark = [
                    row["value"] for row in run["rows"] if row["metric"] == "beacon_gap"
                ]
                figures = {
                    "rate_bps": rates,
                    "dark_s": dark,
                    "round_trip_s": run["watched"],
                }
                for what, values in figures.items():
                    found[name].setdefault(what, []).extend(values)
    medians = {
        name: {k: statistics.median(v) for k, v in one.items()}
        for name, one in found.items()
    }
    one, over = medians["one"], medians["over"]
    show(("", "one host", "two hosts"), [(key, one[key], over[key]) for key in one])
    apart = {key: abs(over[key] - one[key]) for key in one}
    bars = {
        "rate_bps": RATE * one["rate_bps"],
        "round_trip_s": ROUND_TRIP_S,
        "dark_s": DARK_S,
    }
    missed = [
        f"{key}: {apart[key]:.6g} apart"
        for key, bar in bars.items()
        if apart[key] > bar
    ]
    return {**medians, "apart": apart, "all": found, "missed": missed}


def sweep(
    points: int = 12, number: int = 3, runtime: Runtime = "namespace"
) -> dict[str, Any]:
    """A sweep, each of whose points is a lab on some host. Bars: rows of the same form as on one host, and at
    most 1.3 times a third of its time, or of what the processors' time of it all takes on this machine's
    processors, whichever is more: the hosts share them."""
    with tempfile.TemporaryDirectory(prefix="ringlight-hosts-") as folder:
        scenario = Path(folder, "sweep.yaml")
        scenario.write_text(yaml.safe_dump(_points(points)), encoding="utf-8")
        found = _both(scenario, runtime, number, (), parts=False)
    keys = ("whole_s", "processor_s", "verdict")
    show(
        ("", "one host", f"{number} hosts"),
        [(k, found["one"][k], found["over"][k]) for k in keys],
    )
    one, over = (
        {(*_key(row)[:-2], str(row["point"]), row["unit"]) for row in found[n]["rows"]}
        for n in found
    )
    processors = os.cpu_count() or 1
    share_s, shared_s = (
        found["one"]["whole_s"] / number,
        found["over"]["processor_s"] / processors,
    )
    times = found["over"]["whole_s"] / max(share_s, shared_s)
    missed = (
        [f"rows of one only: {sorted(map(str, one ^ over))[:5]}"] if one != over else []
    )
    missed += [f"{times:.2f} times the time"] if times > SWEEP_TIMES else []
    kept = {name: {key: run[key] for key in keys} for name, run in found.items()}
    counted = {
        "a_host's_share_s": share_s,
        "all_processors_s": shared_s,
        "processors": processors,
    }
    return {**kept, **counted, "times": times, "rows": len(over), "missed": missed}


def kills(
    moments: int = 20, seed: int = 29, most: int = 0, into: Path | None = None
) -> dict[str, Any]:
    """A worker process, a host, the network between hosts, and Dask's scheduler, killed in turns. Bars: the
    light of the other hosts stays, nothing of ours is left after ``clean``, what is not ours is there.

    ``into``: a file with a line for each kill, which are not made again; ``most``: so many are made now.
    """
    need_root()
    done = [] if into is None or not into.exists() else into.read_text().splitlines()
    rows = [json.loads(line) for line in done][:moments]
    for number in range(len(rows), min(moments, len(rows) + (most or moments))):
        chance = random.Random(f"{seed} {number}")
        turn = number // len(WHAT)
        after, *bounds = WHEN[turn % len(WHEN)]
        row = None
        # A lab that a busy machine refused is none to kill anything of.
        while row is None:
            with tempfile.TemporaryDirectory(prefix="ringlight-hosts-") as folder:
                after_s = chance.uniform(bounds[0], bounds[1])
                row = _killed(
                    Path(folder), WHAT[number % len(WHAT)], turn, after, after_s
                )
        tell(f"{number + 1} of {moments}: {row}")
        rows.append(row)
        if into is not None:
            with into.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    bars = ("light", "goes_on", "nothing_left", "foreign")
    missed = [
        f"{n}, {row['killed']}: {key}"
        for n, row in enumerate(rows, 1)
        for key in bars
        if not row[key]
    ]
    show(list(rows[0]), [list(row.values()) for row in rows])
    return {"seed": seed, "kills": rows, "missed": missed}


PARTS = (demo, size, link, sweep, kills)


def _both(
    scenario: Path,
    runtime: Runtime,
    number: int,
    words: Sequence[str],
    containers: int = 0,
    watch: Callable[[Hosts], list[float]] | None = None,
    parts: bool = True,
) -> dict[str, dict[str, Any]]:
    """A scenario on one host (``one``) and over several (``over``), each with hosts of its own.

    ``parts``: each lab has a part on each host, and else is on one of them.
    """
    need_root()
    found = {}
    for name, count in (("one", 1), ("over", number)):
        with tempfile.TemporaryDirectory(prefix="ringlight-hosts-") as folder:
            with hosts(Path(folder, "rig"), count, docker=runtime == "docker") as rig:
                how = [
                    "--dask",
                    SCHEDULER,
                    "--runtime",
                    runtime,
                    "--runs",
                    f"{folder}/runs",
                ]
                how += ["--hosts", str(count)] if parts and count > 1 else []
                tell(f"{scenario.stem}: {count} hosts")
                rig.ringlight(
                    "hosts", "check", "--dask", SCHEDULER, "--runtime", runtime
                )
                time.sleep(IMPORTED_S)
                took = _run(
                    rig, ("run", str(scenario), *words, *how), containers, watch
                )
            (run,) = Path(folder, "runs").iterdir()
            result = json.loads((run / "result.json").read_text())
            lines = (run / "events.jsonl").read_text().splitlines()
        reasons = [reason["text"] for reason in result["fidelity"]["reasons"]]
        rest = {
            "rows": result["rows"],
            "verdict": result["fidelity"]["verdict"],
            "reasons": reasons,
        }
        events = [json.loads(line) for line in lines]
        found[name] = {**took, **rest, "events": events}
    return found


def _run(
    rig: Hosts,
    words: Sequence[str],
    containers: int,
    watch: Callable[[Hosts], list[float]] | None,
) -> dict[str, Any]:
    """Seconds, and processors' time of the whole machine, until so many containers run and until the end."""
    began, ticks = time.monotonic(), _busy_s()
    up: dict[str, float | None] = {"up_s": None, "up_processor_s": None}
    with rig.starting(*words) as command:
        while command.poll() is None and containers and up["up_s"] is None:
            if _containers(rig) >= containers:
                up = {
                    "up_s": time.monotonic() - began,
                    "up_processor_s": _busy_s() - ticks,
                }
            time.sleep(0.05)
        watched = [] if watch is None else watch(rig)
        _, err = command.communicate(timeout=COMMAND_S)
    if command.returncode:
        raise SystemExit(f"{' '.join(words)}: {err}")
    whole = {"whole_s": time.monotonic() - began, "processor_s": _busy_s() - ticks}
    return {**up, **whole, "watched": watched}


def _containers(rig: Hosts) -> int:
    """Containers of all hosts that have been created and not removed."""
    count = 0
    for host in rig.hosts:
        with suppress(OSError):
            count += len(os.listdir(f"/proc/{host.child}/root/run/docker/{_TASKS}"))
    return count


def _busy_s() -> float:
    total, idle, _ = machine_ticks()
    return float(total - idle) / os.sysconf("SC_CLK_TCK")


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(
        row[name] for name in ("arm", "subject", "metric", "label", "point", "repeat")
    )


def _moved_over_cut(events: Sequence[Mapping[str, Any]]) -> int:
    """How many GPUs a regroup moved from a packet switch of one host to one of the other."""
    fabric = load(DEMO).one_setting(None, None).fabric
    place = {
        name: at for at, nodes in enumerate(cut(fabric, 2).hosts) for name in nodes
    }
    results = [
        event.get("result") or {}
        for event in events
        if event["event"] == "action_ended"
    ]
    moves = [
        move for result in results for move in result.get("plan", {}).get("moves", ())
    ]
    return sum(
        place[move["from"].partition(":")[0]] != place[move["to"].partition(":")[0]]
        for move in moves
    )


def _many(leaves: int, gpus: int) -> dict[str, Any]:
    """A scenario: job j has GPU j of every leaf, so all rings cross the core."""
    tree = {"leaves": leaves, "spines": 1, "gpus_per_leaf": gpus, "gpu": "gpu"}
    return {
        "name": "size",
        "description": "Many containers behind one core.",
        "scale": {"time": 8, "payload": 400},
        "fabric": {
            "leaf_spine": {**tree, "rate": "40 Gbit/s", "uplink_rate": "160 Gbit/s"}
        },
        "training": {
            "model": "resnet50",
            "compute": "60 ms",
            "batch": 16,
            "iterations": 10,
        },
        "link_test": {"duration": "500 ms"},
        "jobs": {
            f"j{port}": {"ranks": [f"g{gpus * leaf + port}" for leaf in range(leaves)]}
            for port in range(gpus)
        },
        "arms": {"all": {"title": "All jobs at once"}},
    }


def _points(count: int) -> dict[str, Any]:
    """The small scenario's first arm at so many points."""
    found: dict[str, Any] = yaml.safe_load(MINI.read_text(encoding="utf-8"))
    found["arms"] = {"fragmented": found["arms"]["fragmented"]}
    found["sweep"] = {"training.samples": [256 + 8 * number for number in range(count)]}
    del found["compare"]
    return found


def _quiet() -> dict[str, Any]:
    """The small scenario with long computing, so that pings meet empty queues, and one regroup."""
    found: dict[str, Any] = yaml.safe_load(MINI.read_text(encoding="utf-8"))
    found["training"] = {
        "model": "resnet50",
        "compute": "1 s",
        "batch": 8,
        "iterations": 8,
    }
    found["link_test"] = {"duration": "3 s"}
    live = found["arms"]["live"]
    live |= {"events": [{"when": {"job": "red", "iteration": 6}, "do": "regroup"}]}
    live |= {f"jobs.{job}.beacon": "1 ms" for job in found["jobs"]}
    found["arms"] = {"live": live}
    del found["compare"]
    return found


def _pinged(rig: Hosts) -> list[float]:
    """Round trips between GPUs of two packet switches, while a job computes, seconds."""
    fabric = load(MINI).one_setting("live", None).fabric
    near, far = fabric.gpus["g0"].ip, fabric.gpus["g2"].ip
    train = (
        "grep -l '\"iteration\"' /run/ringlight/*/workers/*/events.jsonl 2>/dev/null"
    )
    host = rig.hosts[0]
    until(lambda: _said(host, train), "training", 120.0)
    look = f"for n in $(ip netns | cut -d' ' -f1); do ip netns exec $n ip -o -4 addr | grep -q '{near}/' && "
    name = _said(host, f"{look} echo $n; done").split()[0]
    said = _said(host, f"ip netns exec {name} ping -c 100 -i 0.02 -W 1 {far}")
    return [float(found) / 1e3 for found in re.findall(r"time=([\d.]+) ms", said)]


def _said(host: NamespaceHost, look: str) -> str:
    done = subprocess.run(
        host.command(["sh", "-c", look]), capture_output=True, text=True, timeout=60
    )
    return done.stdout


def _ours(host: NamespaceHost) -> list[str]:
    """What is left of labs on a host: state, interfaces, bridges, namespaces, processes."""
    look = "ls /run/ringlight 2>/dev/null; ip -o link | grep -o 'rl[a-z0-9]*-[^:@]*'; ovs-vsctl list-br; "
    look += "ip netns | cut -d' ' -f1; grep -lz RINGLIGHT_LAB= /proc/[0-9]*/environ 2>/dev/null"
    return [
        line
        for line in _said(host, look).split()
        if line not in ("other", "rlx-1", "other0")
    ]


def _is_lit(host: NamespaceHost) -> bool:
    """Whether an optical switch of a lab has maps with its light."""
    return bool(_said(host, "ls /sys/fs/bpf/ringlight/*/ocs0 2>/dev/null"))


def _iterations(rig: Hosts) -> int:
    look = "cat /run/ringlight/*/workers/*/events.jsonl 2>/dev/null | grep -c '\"iteration\"'"
    return sum(int(_said(host, look) or 0) for host in rig.hosts)


def _is_made(host: NamespaceHost) -> bool:
    """Whether a run has ended well whose command or worker is gone."""
    return bool(_said(host, "ls /run/ringlight/*/made.pickle 2>/dev/null"))


def _has_begun(rig: Hosts, after: str) -> bool:
    if after == "the lab":
        return bool(
            _said(rig.hosts[0], "ls /run/ringlight/*/inventory.json 2>/dev/null")
        )
    return after == "the command" or _iterations(rig) > 0


def _killed(
    folder: Path, what: str, turn: int, after: str, after_s: float
) -> dict[str, Any] | None:
    """None where the command ended before there was what it is to be after."""
    with hosts(folder / "rig") as rig:
        first, second = rig.hosts
        for host in rig.hosts:
            for line in FOREIGN:
                subprocess.run(host.command(line.split()), check=True, timeout=20)
        words = (
            "--arm",
            "fragmented",
            "--hosts",
            "2",
            "--set",
            "training.samples=2048",
        )
        how = (
            "--dask",
            SCHEDULER,
            "--runtime",
            "namespace",
            "--runs",
            str(folder / "runs"),
        )
        command = rig.starting("run", str(MINI), *words, *how)
        began_s = time.monotonic()
        until(
            lambda: _has_begun(rig, after) or command.poll() is not None,
            after,
            120.0,
            0.1,
        )
        if not _has_begun(rig, after):
            tell(f"not counted: {command.communicate(timeout=20)[1]}")
            return None
        time.sleep(after_s)
        at_s, before = time.monotonic() - began_s, _iterations(rig)
        # A lab that is not up yet is removed.
        up = command.poll() is None and bool(
            _said(first, "ls /run/ringlight/*/inventory.json 2>/dev/null")
        )
        alive = [first] if what == "host" else [first, second]
        if what == "worker":
            kill(rig.workers.pop((second, first)[turn % 2].name))
        elif what == "host":
            second.process.kill()
        elif what == "network":
            subprocess.run(
                [*rig.inside, "ip", "link", "set", "h2", "down"], check=True, timeout=20
            )
        else:
            rig.end_scheduler()
        lit = [host for host in alive if up and _is_lit(host)]
        looked_s, stayed, grown = time.monotonic() + LOOK_S, True, False
        while time.monotonic() < looked_s and stayed:
            time.sleep(0.5)
            # Once its run is over it is dark.
            stayed = (
                all(_is_lit(host) for host in lit)
                or command.poll() == 0
                or _is_made(first)
            )
            grown = grown or _iterations(rig) > before or _is_made(first)
        if what == "worker":
            for host in rig.hosts:
                if host.name not in rig.workers:
                    rig.start(host)
        try:
            _, err = command.communicate(timeout=150)
        except subprocess.TimeoutExpired:
            command.kill()
            _, err = command.communicate(timeout=20)
            err += "\nthe command did not end"
        asked = what == "scheduler" and turn % 2 == 1
        if asked:
            rig.start_again()
        elif what != "scheduler":
            # A lab whose scheduler is gone goes on until somebody removes it, or it is over.
            with suppress(TimeoutError):
                until(lambda: not any(map(_ours, alive)), "nothing left", 45.0, 0.5)
        left = {host.name: len(_ours(host)) for host in alive}
        if asked:
            assert rig.ringlight("hosts", "clean", "--dask", SCHEDULER).returncode == 0
        for host in [] if asked else alive:
            clean = host.command([*RINGLIGHT, "clean"])
            subprocess.run(
                clean,
                check=True,
                timeout=120,
                capture_output=True,
                env=rig.environment,
                cwd=ROOT,
            )
        there = [
            _said(host, "ip netns; ip -o link show rlx-1; ovs-vsctl list-br")
            for host in alive
        ]
        return {
            "killed": what,
            "after": after,
            "at_s": round(at_s, 1),
            "lit_before": [host.name for host in lit],
            "iterations": before,
            "exit_code": command.returncode,
            "said": err.strip().splitlines()[-1][:100] if err.strip() else "",
            "light": stayed,
            # A job has ranks on both hosts, and ends with a host or its network.
            "goes_on": grown or not before or not lit or what in ("host", "network"),
            "left_before_clean": left,
            "nothing_left": not any(map(_ours, alive)),
            "foreign": all(
                all(name in said for name in ("other", "rlx-1", "other0"))
                for said in there
            ),
        }
