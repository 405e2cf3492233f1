"""``python -m benchmarks.kills``: kills a process of a lab in the middle of each run. Needs root.

Kills (SIGKILL) each kind of process at random moments over six scenarios, and looks each time whether a line,
an event and the verdict name it, whether the run went on where that is promised, and what of the lab is left.
Prints a row for each kill, or JSON; exits with 1 where anything is not as it should be.

With ``--open-vswitch`` it is the machine's Open vSwitch that is killed: by SIGSEGV, after which its monitor
starts it again, and by SIGKILL, after which nobody does but this program. Every lab of the machine loses its
packets meanwhile; run it alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ringlight.experiments.record.events import Aborted, JobState, ProcessEnded, Record, read_records
from ringlight.testbed import services
from ringlight.testbed.emulation.clean import clean, clean_objects
from ringlight.testbed.emulation.vswitchd import PID_FILE
from ringlight.testbed.lab import ENVIRONMENT, Lab

ROOT = Path(__file__).resolve().parents[1]
DEADLINE_S = 180.0
#: By kind, the module that such a process runs.
MODULES = {
    "optical switch": "ringlight.testbed.emulation.optical",
    "O-NIC agent": "ringlight.testbed.emulation.onic",
    "averager": "ringlight.testbed.emulation.averager",
    "applications": "ringlight.controller.openflow.apps",
    "controller": "ringlight.controller",
    "testbed": "ringlight.testbed.emulation",
    "worker": "ringlight.containers.worker",
}
#: Without these a run cannot go on; all others come back, and jobs go on.
ENDS_RUN = ("testbed", "worker")


@dataclass(frozen=True)
class Case:
    """A scenario made short. ``lasts_s``: about, from the release. ``kinds``: what may be killed."""

    file: str
    arm: str
    change: dict[str, Any]
    lasts_s: float
    kinds: tuple[str, ...]
    app: str | None = None


_ALWAYS = ("controller", "worker", "testbed")
_LIT = ("optical switch", *_ALWAYS)
_APP = "docs/applications/learning_switch.py"
CASES = (
    Case("scenarios/disaggregation.yaml", "a-fragmented", {"samples": 672}, 7.0, _LIT),
    Case("scenarios/oddl_4.yaml", "prototype", {"iterations": 8}, 7.0, ("O-NIC agent", *_LIT)),
    Case("scenarios/optinc_4.yaml", "optinc", {}, 4.0, ("averager", *_ALWAYS)),
    Case("scenarios/wrht_9.yaml", "wrht", {"iterations": 2}, 10.0, _LIT),
    Case("scenarios/sip_ml_8.yaml", "sip-ocs-divided", {}, 6.0, _LIT),
    Case(
        "docs/applications/two_switches.yaml", "two", {"iterations": 12}, 8.0, ("applications", *_LIT), _APP
    ),
)
OPEN_VSWITCH = (CASES[0], CASES[5])


def shortened(case: Case) -> dict[str, Any]:
    """What the file says of one arm, made short."""
    whole = yaml.safe_load((ROOT / case.file).read_text(encoding="utf-8"))
    for key in ("compare", "published", "paper"):
        whole.pop(key, None)
    whole["arms"] = {case.arm: whole["arms"][case.arm]}
    whole["link_test"] = {"duration": "300 ms"}
    parameters = whole.get("parameters", {})
    for parameter in parameters.values():
        parameter.pop("fitted_to", None)
    for key, value in case.change.items():
        if key in parameters:
            parameters[key] = {"value": value, "source": "assumed", "why": "Short."}
        else:
            whole["training"][key] = value
    return dict(whole)


def processes(lab: Lab, kind: str) -> list[int]:
    """Process ids of one kind in a lab, found by command line and environment."""
    label, found = f"{ENVIRONMENT}={lab.id}".encode(), []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            if MODULES[kind].encode() in words and label in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return sorted(found)


def free_address() -> str:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def read(folder: Path) -> list[Record]:
    with suppress(OSError, RuntimeError, ValueError):
        return read_records(folder / "events.jsonl")
    return []


class Running:
    """A ``ringlight run``, whose lines are read as they come."""

    def __init__(self, case: Case, folder: Path, runtime: str) -> None:
        scenario = folder / Path(case.file).name
        scenario.write_text(yaml.safe_dump(shortened(case), sort_keys=False), encoding="utf-8")
        words = ["run", str(scenario), "--runs", str(folder / "runs"), "--runtime", runtime]
        for option in ("rest", "openflow"):
            words += [f"--{option}", free_address()]
        if case.app is not None:
            words += ["--app", str(ROOT / case.app)]
            words += ["--app-openflow", free_address(), "--app-rest", free_address()]
        self.runs = folder / "runs"
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ringlight.experiments.cli.app", *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "NO_COLOR": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip() for line in self.process.stdout)

    def released(self) -> Path | None:
        """The run folder, once the jobs were let go; None where the run ended before."""
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            for events in self.runs.glob("*/events.jsonl"):
                if '"event":"released"' in events.read_text(encoding="utf-8"):
                    return events.parent
            time.sleep(0.02)
        return None

    @property
    def lab(self) -> Lab:
        return next(Lab(found[1]) for line in self.lines if (found := re.search(r"lab (\w+) is up", line)))

    def end(self) -> None:
        try:
            self.process.wait(DEADLINE_S)
        finally:
            if self.process.poll() is None:
                self.process.terminate()
                self.process.wait(60)
            self._reader.join(10)


def once(
    case: Case, kind: str, moment_s: float, choice: random.Random, runtime: str
) -> dict[str, Any] | None:
    """One kill; None where the run was over before."""
    with tempfile.TemporaryDirectory() as name:
        running = Running(case, Path(name), runtime)
        try:
            folder = running.released()
            if folder is None:
                running.end()
                raise SystemExit("\n".join(["the run did not start:", *running.lines]))
            time.sleep(moment_s)
            lab, sent = running.lab, signal.SIGKILL
            if kind.startswith("Open vSwitch"):
                sent = signal.SIGSEGV if "SIGSEGV" in kind else signal.SIGKILL
                pids = [int(PID_FILE.read_text())]
            else:
                pids = processes(lab, kind)
            if not pids or running.process.poll() is not None:
                return None
            os.kill(choice.choice(pids), sent)
            killed_s = time.monotonic()
        finally:
            running.end()
            # Without it nobody can see what is left there.
            services.start_open_vswitch()
        return looked_at(case, kind, moment_s, running, folder, time.monotonic() - killed_s)


def verdict_of(folder: Path) -> list[dict[str, Any]]:
    """The reasons; of a run that was broken off as ``ringlight report`` tells them."""
    result = folder / "result.json"
    if not result.exists():
        words = [sys.executable, "-m", "ringlight.experiments.cli.app", "report", str(folder)]
        subprocess.run(words, cwd=ROOT, capture_output=True, timeout=DEADLINE_S, check=False)
    try:
        return list(json.loads(result.read_text(encoding="utf-8"))["fidelity"]["reasons"])
    except FileNotFoundError:
        return []


def looked_at(
    case: Case, kind: str, moment_s: float, running: Running, folder: Path, took_s: float
) -> dict[str, Any]:
    """What the run said of it, and what is left."""
    records, lab, process = read(folder), running.lab, kind.partition(" (")[0]
    reasons = verdict_of(folder)
    text = "\n".join(running.lines)
    event: list[Record]
    if process == "worker":
        line = re.search(r"job \w+ failed: rank \d+ on GPU \w+ was killed by SIGKILL", text)
        event = [r for r in records if isinstance(r, JobState) and "killed by SIGKILL" in (r.reason or "")]
        verdict = [r for r in reasons if r["code"] == "job_killed"]
    elif process == "testbed":
        line = re.search(r"ringlight: .*the testbed ended \(killed by SIGKILL\)", text)
        event = [r for r in records if isinstance(r, Aborted) and "testbed ended" in r.reason]
        verdict = [r for r in reasons if r["code"] == "aborted"]
    else:
        line = re.search(r"died \(killed by SIG|Open vSwitch died", text)
        event = [r for r in records if isinstance(r, ProcessEnded) and r.kind == process and not r.planned]
        verdict = [r for r in reasons if r["code"].startswith("process_") and r["kind"] == process]
        if not verdict:
            verdict = [r for r in reasons if r["code"] == "aborted"]
    state = lab.state_dir.exists()
    still = [pid for one in MODULES for pid in processes(lab, one)]
    left = [*clean_objects(lab), *([str(lab.state_dir)] if state else []), *map(str, still)]
    clean(lab.id)
    code = running.process.returncode
    return {
        "scenario": Path(case.file).stem,
        "kind": kind,
        "moment_s": round(moment_s, 2),
        "then_s": round(took_s, 1),
        "exit_code": code,
        "line": line is not None,
        "event": bool(event),
        "verdict": bool(verdict),
        "went_on": code == 0,
        "left": left,
        "traceback": "Traceback" in text,
        "said": [one for one in running.lines if "died" in one or "failed" in one or "ringlight: " in one],
        "last": running.lines[-3:] if "Traceback" in text else [],
    }


def is_right(entry: dict[str, Any]) -> bool:
    named = entry["line"] and entry["event"] and entry["verdict"]
    ends = entry["kind"] in (*ENDS_RUN, "Open vSwitch (SIGKILL)")
    promised = entry["went_on"] or ends or entry["kind"].startswith("Open vSwitch")
    return bool(named and promised and not entry["left"] and not entry["traceback"])


def plan(count: int, choice: random.Random) -> list[tuple[Case, str]]:
    """Choose kills: each kind in each scenario that has it, then at random."""
    pairs = [(case, kind) for case in CASES for kind in case.kinds]
    choice.shuffle(pairs)
    return [*pairs, *(choice.choice(pairs) for _ in range(count))][:count]


def table(entries: list[dict[str, Any]]) -> str:
    head = ["scenario", "kind", "moment_s", "then_s", "line", "event", "verdict", "went_on", "left", "right"]
    rows = [{**entry, "left": len(entry["left"]), "right": is_right(entry)} for entry in entries]
    cells = [head, *([str(row[key]) for key in head] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--first", type=int, default=1, help="number of the first kill, to go on with")
    parser.add_argument("--last", type=int, help="number of the last one, for a part")
    parser.add_argument("--runtime", choices=["namespace", "docker"], default="namespace")
    parser.add_argument("--open-vswitch", action="store_true", help="kill the machine's Open vSwitch instead")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    choice = random.Random(chosen.seed)
    kills = plan(chosen.kills, choice)
    if chosen.open_vswitch:
        kills = [(case, f"Open vSwitch ({how})") for case in OPEN_VSWITCH for how in ("SIGSEGV", "SIGKILL")]
    found: list[dict[str, Any]] = []
    for number, (case, kind) in enumerate(kills, start=1):
        own = random.Random(f"{chosen.seed} {number}")
        share = own.uniform(0.02, 0.9)
        if not chosen.first <= number <= (chosen.last or len(kills)):
            continue
        entry = None
        while entry is None:
            # Where the run was over before, earlier.
            entry = once(case, kind, share * case.lasts_s, own, chosen.runtime)
            share /= 2
        found.append({"number": number, **entry})
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    print(json.dumps(found, indent=2) if chosen.json else table(found))
    sys.exit(not all(map(is_right, found)))


if __name__ == "__main__":
    main()
