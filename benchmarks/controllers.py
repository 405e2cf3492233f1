"""The same regroup under several controllers of the packet switches, side by side. Needs root.

It brings up ``docs/applications/two_switches.yaml`` once for each of ``ARMS``, has two GPUs at two switches
train, brings them together while they do, and then moves a GPU that sends nothing by itself. All GPUs ping
all others meanwhile. Faucet needs ``--faucet PROGRAM``, installed from PyPI in an environment of its own.

``regroup_s``: from its request to its end. ``dark_s``: longest dark time that the optical switch reports.
``usual_s``, ``longest_s``: of the job's iterations, the median and the longest. ``blackout_s``: the longest
silence of the datagrams that its ranks send each other every 5 ms while light moved, and ``beacons_lost``
how many of these were lost. ``told_s``: from the end of the light's change until who listens to events was
told of it. ``pairs_s``: from the regroup's end until every GPU has been answered by every other;
``pings_lost``: those that were not answered. ``listener_s``, ``listener_lost``: the same of all others that
ping a GPU that was moved and only answers; None where that was not within ``--wait`` seconds.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from benchmarks.harness import (
    ROOT,
    check_known,
    lab_up,
    need_root,
    running,
    tell,
    until,
)
from ringlight.experiments.client import Api
from ringlight.testbed.emulation.attached import Attached, of_lab
from ringlight.testbed.lab import Lab
from tests.integration.controller_rig import free_port

APPLICATIONS = ROOT / "docs/applications"
SCENARIO = APPLICATIONS / "two_switches.yaml"
#: Who writes the tables of both packet switches, by arm, as said in the table.
ARMS = {
    "ringlight": "ours",
    "app": "learning switch, `--app`",
    "manager": "os-ken application, its own manager",
    "faucet": "Faucet",
    "none": "none (standalone)",
}
#: Emulated seconds between two datagrams of a rank, and between two pings of a pair.
BEACON_S, PING_S = 0.005, 0.05
#: Longest wait for the lab to work at all, and for the job, seconds.
READY_S, JOB_S = 60.0, 60.0
TRAIN: dict[str, Any] = {
    "workload": "train",
    "gradient_bytes": 96400,
    "compute_s": 0.1,
    "iterations": 60,
}
TRAIN |= {
    "batch": 8,
    "seed": 7,
    "learning_rate": 0.05,
    "peer_timeout_s": 30,
    "beacon_interval_s": BEACON_S,
}
RANKS = ["g0", "g2"]
#: Moved after the regroup, from p0:2 to a port of the other switch.
LISTENER, ITS_PORT = "g1", "p1:1"
#: Iterations before the regroup.
WARM = 10
_ECHO = re.compile(r"^\[([0-9.]+)\] \d+ bytes from .*icmp_seq=(\d+)")


def controllers(
    arm: list[str] = [],
    times: int = 3,
    wait: float = 10.0,
    faucet: str | None = None,
    runtime: Literal["namespace", "docker"] = "namespace",
) -> dict[str, Any]:
    """``arm``: only these; ``wait``: longest for answers, seconds; ``faucet``: its program."""
    need_root()
    check_known("--arm", arm, ARMS)
    names = arm or [name for name in ARMS if name != "faucet" or faucet]
    if "faucet" in names and not faucet:
        raise SystemExit("--arm faucet: name its program with --faucet")
    arms = [measure(name, times, wait, faucet, runtime) for name in names]
    tell(table(arms, wait))
    missed = (
        []
        if same_light(arms)
        else ["moves and circuits afterwards are not the same in all arms"]
    )
    return {
        "times": times,
        "runtime": runtime,
        "wait_s": wait,
        "arms": arms,
        "missed": missed,
    }


PARTS = (controllers,)


@dataclass(frozen=True)
class Echoes:
    """What a ping from one GPU to another said: when each answer came, CLOCK_MONOTONIC seconds, by number."""

    source: str
    target: str
    at: Mapping[int, float]
    sent: int

    def back_s(self, since: float) -> float | None:
        """Seconds from ``since`` to the first answer after it; None if there was none."""
        return min((t - since for t in self.at.values() if t >= since), default=None)

    @property
    def lost(self) -> int:
        """Pings without an answer, apart from up to two that were under way at the end."""
        last = max(self.at, default=0)
        return (last if self.sent - last <= 2 else self.sent) - len(self.at)


def read_echoes(source: str, target: str, said: str, offset_s: float) -> Echoes:
    """What ``ping -D`` wrote; ``offset_s``: of the wall clock to CLOCK_MONOTONIC."""
    found = [match for line in said.splitlines() if (match := _ECHO.match(line))]
    at = {int(match[2]): float(match[1]) - offset_s for match in found}
    total = re.search(r"^(\d+) packets transmitted", said, re.MULTILINE)
    return Echoes(source, target, at, int(total[1]) if total else max(at, default=0))


class Pinging:
    """Pings from GPUs to GPUs at a steady pace, until :meth:`end`."""

    def __init__(
        self, lab: Attached, pairs: Sequence[tuple[str, str]], folder: Path
    ) -> None:
        places = lab.places()
        self._offset_s = time.time() - time.monotonic()
        self._running: list[tuple[str, str, subprocess.Popen[bytes], Path]] = []
        for source, target in pairs:
            file = folder / f"{source}-{target}.ping"
            words = [
                "ping",
                "-n",
                "-D",
                "-i",
                f"{PING_S:g}",
                lab.fabric.gpus[target].ip,
            ]
            with file.open("wb") as output:
                process = subprocess.Popen(
                    places[source].command(words),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=lab.environment(),
                )
            self._running.append((source, target, process, file))

    def so_far(self) -> list[Echoes]:
        return [
            read_echoes(a, b, file.read_text(), self._offset_s)
            for a, b, _, file in self._running
        ]

    def end(self) -> list[Echoes]:
        for _, _, process, _ in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for _, _, process, _ in self._running:
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5.0)
        return self.so_far()


@contextmanager
def pinging(
    lab: Attached, pairs: Sequence[tuple[str, str]], folder: Path
) -> Iterator[Pinging]:
    pings = Pinging(lab, pairs, folder)
    try:
        yield pings
    finally:
        pings.end()


def own_manager(port: int) -> list[str]:
    """The command of an os-ken application under its own manager, without anything of ours."""
    return [
        sys.executable,
        str(APPLICATIONS / "own_manager.py"),
        "127.0.0.1",
        str(port),
    ]


def faucet_command(program: str, port: int, folder: Path) -> list[str]:
    """The command of Faucet for both switches, their ports in one VLAN; its files are in ``folder``."""
    ports = {number: {"native_vlan": "lab"} for number in range(1, 5)}
    dps = {
        f"p{i}": {"dp_id": i + 1, "hardware": "Open vSwitch", "interfaces": ports}
        for i in range(2)
    }
    config = folder / "faucet.yaml"
    config.write_text(yaml.safe_dump({"vlans": {"lab": {"vid": 100}}, "dps": dps}))
    # It starts os-ken's own manager, which is beside it.
    where = [
        f"PATH={Path(program).parent}:{os.environ['PATH']}",
        f"FAUCET_CONFIG={config}",
    ]
    logs = [f"FAUCET_LOG={folder / 'faucet.log'}", "FAUCET_EXCEPTION_LOG=STDERR"]
    words = [
        "--ryu-ofp-tcp-listen-port",
        str(port),
        "--ryu-ofp-listen-host",
        "127.0.0.1",
    ]
    return ["env", *where, *logs, program, *words]


def scenario(controllers: Mapping[str, str], folder: Path) -> Path:
    """The example's file with these controllers of its packet switches."""
    document = yaml.safe_load(SCENARIO.read_text())
    fabric = document["fabrics"]["two"]
    del fabric["controller"]
    for name, controller in controllers.items():
        fabric["packet_switches"][name]["controller"] = controller
    file = folder / "scenario.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


class Bench:
    """One lab under one controller, measured."""

    def __init__(self, api: Api, lab: Attached, folder: Path, wait_s: float) -> None:
        self._api, self._lab, self._folder, self._wait_s = api, lab, folder, wait_s
        self._pairs = list(itertools.permutations(lab.fabric.gpus, 2))

    def _circuits(self) -> list[list[str]]:
        return sorted(
            circuit["ends"] for circuit in self._api.get("/v1/circuits")["circuits"]
        )

    def _light(self, circuits: Sequence[Sequence[str]]) -> float:
        """Exactly these circuits; when the change had ended."""
        answer = self._api.put("/v1/circuits", {"circuits": circuits})
        return float(answer["timeline"][-1]["t"])

    def _events(self, kind: str) -> list[dict[str, Any]]:
        told = self._api.stream("/v1/events?after=0&seconds=0.3")
        return [event for event in told if event["event"] == kind]

    def all_answered(self) -> None:
        """Wait until every GPU is answered by every other."""
        with pinging(self._lab, self._pairs, self._folder) as pings:
            all_at = lambda: all(echoes.at for echoes in pings.so_far())  # noqa: E731
            until(all_at, "every GPU's answer to every other", READY_S)

    def _wait_for(self, pings: Pinging, since: float) -> None:
        """Wait until all are answered again; who is not in time is a result."""
        with suppress(TimeoutError):
            until(
                lambda: all(e.back_s(since) is not None for e in pings.so_far()),
                "answers",
                self._wait_s,
            )

    def once(self, number: int) -> dict[str, Any]:
        began_with = self._circuits()
        self.all_answered()
        regroup = self._regroup(f"job{number}")
        found = {**regroup, **self._listener()}
        self._light(began_with)
        return found

    def _regroup(self, job: str) -> dict[str, Any]:
        before = time.monotonic()
        self._api.post("/v1/jobs", {"name": job, "ranks": RANKS, **TRAIN})

        def events(kind: str) -> list[dict[str, Any]]:
            return [
                e
                for e in self._api.get(f"/v1/jobs/{job}/events")["events"]
                if e["event"] == kind
            ]

        until(lambda: len(events("iteration")) > 2, "the job's first iterations", JOB_S)
        with pinging(self._lab, self._pairs, self._folder) as pings:
            until(
                lambda: all(e.at for e in pings.so_far()),
                "pings beside the job",
                READY_S,
            )
            until(
                lambda: len(events("iteration")) > 2 * WARM,
                "the job's iterations",
                JOB_S,
            )
            where = f"/v1/regroup/{self._api.post('/v1/regroup', {})['id']}"
            until(
                lambda: self._api.get(where)["state"] in ("DONE", "FAILED"),
                "the regroup's end",
                20.0,
            )
            regroup = self._api.get(where)
            if regroup["state"] != "DONE":
                raise SystemExit(f"controllers: {regroup['id']}: {regroup['error']}")
            ended = regroup["timeline"][-1]["t"]
            self._wait_for(pings, ended)
            echoes = pings.end()
        circuits = self._circuits()
        its = f"/v1/jobs/{job}"
        until(
            lambda: self._api.get(its)["state"] in ("SUCCEEDED", "FAILED"),
            "the job's end",
            JOB_S,
        )
        if (state := self._api.get(its))["state"] == "FAILED":
            raise SystemExit(f"controllers: {job}: {state['error']}")
        phases = {entry["phase"]: entry["t"] for entry in regroup["timeline"]}
        lit = [
            r
            for group in regroup["results"].values()
            for r in group
            if r["t_lit"] and r["t_dark"]
        ]
        ends = [event["t"] for event in events("iteration") if event["rank"] == 0]
        took = [b - a for a, b in itertools.pairwise(ends)]
        gaps = [
            gap
            for event in events("done")
            for gap in event["beacon_gaps"]
            if gap["t_end"] >= phases["remove_light"]
            and gap["t_start"] <= phases["ended"] + self._wait_s
        ]
        told = [
            event["t"]
            for event in self._events("packet_switch_light")
            if event["t"] > before
        ]
        return {
            "moves": [[move["gpu"], move["to"]] for move in regroup["plan"]["moves"]],
            "circuits": circuits,
            "left_to_others": regroup["left_to_others"],
            "regroup_s": phases["ended"] - phases["requested"],
            "dark_s": max(r["t_lit"] - r["t_dark"] for r in lit),
            "usual_s": statistics.median(took),
            "longest_s": max(took),
            "blackout_s": max(
                (gap["t_end"] - gap["t_start"] for gap in gaps), default=0.0
            ),
            "beacons_lost": sum(gap["lost"] for gap in gaps),
            "told_s": max(told) - phases["light_added"] if told else None,
            **back(echoes, ended, "pairs", "pings"),
        }

    def _listener(self) -> dict[str, Any]:
        """Move a GPU that sends nothing by itself; all others ping it."""
        others = [(gpu, LISTENER) for gpu in self._lab.fabric.gpus if gpu != LISTENER]
        self.all_answered()
        with pinging(self._lab, others, self._folder) as pings:
            until(
                lambda: all(len(e.at) > 4 for e in pings.so_far()),
                f"pings to {LISTENER}",
                READY_S,
            )
            now = [pair for pair in self._circuits() if LISTENER not in pair]
            ended = self._light([*now, [LISTENER, ITS_PORT]])
            self._wait_for(pings, ended)
            return back(pings.end(), ended, "listener", "listener")


def back(
    echoes: Sequence[Echoes], since: float, what: str, lost: str
) -> dict[str, Any]:
    """Time until the last of these pairs was answered again, and the pings that were lost."""
    times = [one.back_s(since) for one in echoes]
    known = [t for t in times if t is not None]
    return {
        f"{what}_s": max(known) if len(known) == len(times) else None,
        f"{lost}_lost": sum(one.lost for one in echoes),
    }


def measure(
    arm: str, times: int, wait_s: float, program: str | None, runtime: str
) -> dict[str, Any]:
    """One arm: a lab, its controller, and ``times`` regroups."""
    openflow = free_port()
    theirs = f"tcp:127.0.0.1:{openflow}"
    controller = arm if arm in ("ringlight", "app", "none") else theirs
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="ringlight-controllers-")
            )
        )
        file = scenario(dict.fromkeys(("p0", "p1"), controller), folder)
        words = (
            ["--app", str(APPLICATIONS / "learning_switch.py")] if arm == "app" else []
        )
        for option in ("--app-openflow", "--app-rest") if words else ():
            words += [option, f"127.0.0.1:{free_port()}"]
        if arm == "manager":
            stack.enter_context(running(own_manager(openflow), folder / "other.log"))
        elif arm == "faucet":
            assert program is not None
            stack.enter_context(
                running(faucet_command(program, openflow, folder), folder / "other.log")
            )
        lab = stack.enter_context(lab_up(file, runtime, None, *words))
        api = stack.enter_context(Api(lab["url"]))
        bench = Bench(api, of_lab(Lab(lab["lab"])), folder, wait_s)
        runs = []
        for number in range(times):
            tell(f"{ARMS[arm]}: {number + 1} of {times}")
            runs.append(bench.once(number))
    return {
        "arm": arm,
        "controller": controller.replace(theirs, "tcp"),
        "runs": runs,
        **medians(runs),
    }


def medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median and worst of each figure; None, which is "not in time", is worse than any."""
    found = {}
    for key in [key for key in runs[0] if key.endswith(("_s", "_lost"))]:
        values = sorted((run[key] for run in runs), key=lambda v: (v is None, v))
        middle = values[len(values) // 2]
        found[key] = {"median": middle, "worst": values[-1]}
    return found


#: Rows of the table: what it is, its figure, whether it is a time.
ROWS = (
    ("regroup, from request to end", "regroup_s", True),
    ("of it dark", "dark_s", True),
    ("events told of it after the light", "told_s", True),
    ("usual iteration", "usual_s", True),
    ("longest iteration", "longest_s", True),
    ("blackout of the job", "blackout_s", True),
    ("of its beacons lost", "beacons_lost", False),
    ("all pairs answer, after the end", "pairs_s", True),
    ("pings lost, all pairs", "pings_lost", False),
    ("a listener that moved answers, after the end", "listener_s", True),
    ("pings to it lost", "listener_lost", False),
)


def table(arms: Sequence[Mapping[str, Any]], wait_s: float) -> str:
    """Figures by arm as Markdown: the median, and the worst in brackets."""

    def cell(arm: Mapping[str, Any], key: str, is_time: bool) -> str:
        def one(value: float | None) -> str:
            if value is None:
                return "–" if key == "told_s" else f"not in {wait_s:g} s"
            return f"{1e3 * value:.0f} ms" if is_time else f"{value:.0f}"

        median, worst = one(arm[key]["median"]), one(arm[key]["worst"])
        return median if median == worst else f"{median} ({worst})"

    lines = [
        "| who writes the tables | "
        + " | ".join(ARMS[arm["arm"]] for arm in arms)
        + " |"
    ]
    lines.append("|---" * (len(arms) + 1) + "|")
    for name, key, is_time in ROWS:
        lines.append(
            f"| {name} | " + " | ".join(cell(arm, key, is_time) for arm in arms) + " |"
        )
    return "\n".join(lines)


def same_light(arms: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every regroup of every arm made the same moves and ended with the same circuits."""
    seen = {
        json.dumps([run["moves"], run["circuits"]])
        for arm in arms
        for run in arm["runs"]
    }
    return len(seen) == 1
