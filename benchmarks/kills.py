"""Kills a process of a lab in the middle of each run, and looks whether all is as promised. Needs root.

Kills (SIGKILL) each kind of process at random moments over six scenarios, and looks each time whether a line,
an event and the verdict name it, whether the run went on where that is promised, and what of the lab is left.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from benchmarks.harness import RINGLIGHT, ROOT, need_root, show, tell
from ringlight.experiments.record.events import Aborted, JobState, Record
from ringlight.experiments.record.lab_records import ProcessEnded
from ringlight.experiments.record.lines import read_records
from ringlight.testbed import services
from ringlight.testbed.emulation.clean import clean
from ringlight.testbed.emulation.vswitchd import PID_FILE
from ringlight.testbed.lab import ENVIRONMENT, Lab
from tests.integration.controller_rig import free_port
from tests.integration.test_run import RunningCommand

DEADLINE_S = 180.0
#: By kind, the module that such a process runs.
MODULES = {
    "optical switch": "ringlight.testbed.emulation.optical",
    "O-NIC agent": "ringlight.testbed.emulation.onic",
    "averager": "ringlight.extensions.optinc.emulated",
    "applications": "ringlight.extensions.applications.apps",
    "controller": "ringlight.controller",
    "testbed": "ringlight.testbed.emulation",
    "worker": "ringlight.containers.worker",
}
#: Without these a run cannot go on; all others come back, and jobs go on.
ENDS_RUN = ("testbed", "worker")
COLUMNS = (
    "scenario",
    "kind",
    "moment_s",
    "then_s",
    "line",
    "event",
    "verdict",
    "went_on",
    "left",
)


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
_ALL_CASES = (
    Case("scenarios/disaggregation.yaml", "a-fragmented", {"samples": 672}, 7.0, _LIT),
    Case(
        "scenarios/oddl_4.yaml",
        "prototype",
        {"iterations": 8},
        7.0,
        ("O-NIC agent", *_LIT),
    ),
    Case("scenarios/optinc_4.yaml", "optinc", {}, 4.0, ("averager", *_ALWAYS)),
    Case("scenarios/wrht_9.yaml", "wrht", {"iterations": 2}, 10.0, _LIT),
    Case("scenarios/sip_ml_8.yaml", "sip-ocs-divided", {}, 6.0, _LIT),
    Case(
        "docs/applications/two_switches.yaml",
        "two",
        {"iterations": 12},
        8.0,
        ("applications", *_LIT),
        _APP,
    ),
)
#: Those whose scenario is there: all but the first are of extensions.
CASES = tuple(case for case in _ALL_CASES if (ROOT / case.file).exists())
OPEN_VSWITCH = tuple(
    case for case in CASES if case.app is not None or case.file == _ALL_CASES[0].file
)


def kills(
    kills: int = 30,
    seed: int = 24,
    first: int = 1,
    last: int | None = None,
    runtime: Literal["namespace", "docker"] = "namespace",
    open_vswitch: bool = False,
) -> dict[str, Any]:
    """``first``, ``last``: numbers of kills, for a part. ``open_vswitch``: the machine's Open vSwitch is
    killed instead: by SIGSEGV, after which its monitor starts it again, and by SIGKILL, after which nobody
    does but this program. Every lab of the machine loses its packets meanwhile; run it alone."""
    need_root()
    planned = plan(kills, random.Random(seed))
    if open_vswitch:
        names = [f"Open vSwitch ({sent})" for sent in ("SIGSEGV", "SIGKILL")]
        planned = [(case, name) for case in OPEN_VSWITCH for name in names]
    found: list[dict[str, Any]] = []
    for number, (case, kind) in enumerate(planned, start=1):
        own = random.Random(f"{seed} {number}")
        share = own.uniform(0.02, 0.9)
        if not first <= number <= (last or len(planned)):
            continue
        entry = None
        while entry is None:
            # Where the run was over before, earlier.
            entry = once(case, kind, share * case.lasts_s, own, runtime)
            share /= 2
        found.append({"number": number, **entry})
        tell(json.dumps(found[-1]))
    show(
        (*COLUMNS, "right"),
        [(*(entry[key] for key in COLUMNS), is_right(entry)) for entry in found],
    )
    return {
        "kills": found,
        "missed": [entry["number"] for entry in found if not is_right(entry)],
    }


PARTS = (kills,)


def plan(count: int, choice: random.Random) -> list[tuple[Case, str]]:
    """Choose kills: each kind in each scenario that has it, then at random."""
    pairs = [(case, kind) for case in CASES for kind in case.kinds]
    choice.shuffle(pairs)
    return [*pairs, *(choice.choice(pairs) for _ in range(count))][:count]


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
            if MODULES[kind].encode() in words and label in (
                path / "environ"
            ).read_bytes().split(b"\0"):
                found.append(int(path.name))
    return sorted(found)


def started(case: Case, folder: Path, runtime: str) -> RunningCommand:
    scenario = folder / Path(case.file).name
    scenario.write_text(
        yaml.safe_dump(shortened(case), sort_keys=False), encoding="utf-8"
    )
    options, words = ["--rest", "--openflow"], ["--runtime", runtime]
    if case.app is not None:
        words += ["--app", str(ROOT / case.app)]
        options += ["--app-openflow", "--app-rest"]
    for option in options:
        words += [option, f"127.0.0.1:{free_port()}"]
    return RunningCommand(folder / "runs", *words, scenario=scenario)


def released(run: RunningCommand, runs: Path) -> Path:
    """The run folder, once the jobs were let go."""
    deadline = time.monotonic() + DEADLINE_S
    while run.process.poll() is None and time.monotonic() < deadline:
        for events in runs.glob("*/events.jsonl"):
            if '"event":"released"' in events.read_text(encoding="utf-8"):
                return events.parent
        time.sleep(0.02)
    raise SystemExit("\n".join(["the run did not start:", *run.lines]))


def once(
    case: Case, kind: str, moment_s: float, choice: random.Random, runtime: str
) -> dict[str, Any] | None:
    """One kill; None where the run was over before."""
    with tempfile.TemporaryDirectory() as name:
        run = started(case, Path(name), runtime)
        try:
            folder = released(run, Path(name) / "runs")
            time.sleep(moment_s)
            sent = signal.SIGSEGV if "SIGSEGV" in kind else signal.SIGKILL
            if kind.startswith("Open vSwitch"):
                pids = [int(PID_FILE.read_text())]
            else:
                pids = processes(run.lab(), kind)
            if not pids or run.process.poll() is not None:
                return None
            os.kill(choice.choice(pids), sent)
            killed_s = time.monotonic()
            try:
                run.end()
            finally:
                # Without it nobody can see what is left there.
                services.start_open_vswitch()
            took_s = time.monotonic() - killed_s
            entry = looked_at(kind, run, folder)
        finally:
            run.stop()
    moments = {"moment_s": round(moment_s, 2), "then_s": round(took_s, 1)}
    return {"scenario": Path(case.file).stem, "kind": kind, **moments, **entry}


def verdict_of(folder: Path) -> list[dict[str, Any]]:
    """The reasons; of a run that was broken off as ``ringlight report`` tells them."""
    result = folder / "result.json"
    if not result.exists():
        words = [*RINGLIGHT, "report", str(folder)]
        subprocess.run(
            words, cwd=ROOT, capture_output=True, timeout=DEADLINE_S, check=False
        )
    try:
        return list(
            json.loads(result.read_text(encoding="utf-8"))["fidelity"]["reasons"]
        )
    except FileNotFoundError:
        return []


def looked_at(kind: str, run: RunningCommand, folder: Path) -> dict[str, Any]:
    """What the run said of it, and what is left, which is removed."""
    process, reasons, text = (
        kind.partition(" (")[0],
        verdict_of(folder),
        "\n".join(run.lines),
    )
    records: list[Record] = []
    with suppress(OSError, RuntimeError, ValueError):
        records = read_records(folder / "events.jsonl")
    event: list[Record]
    if process == "worker":
        line = re.search(
            r"job \w+ failed: rank \d+ on GPU \w+ was killed by SIGKILL", text
        )
        event = [
            r
            for r in records
            if isinstance(r, JobState) and "killed by SIGKILL" in (r.reason or "")
        ]
        verdict = [r for r in reasons if r["code"] == "job_killed"]
    elif process == "testbed":
        line = re.search(r"ringlight: .*the testbed ended \(killed by SIGKILL\)", text)
        event = [
            r for r in records if isinstance(r, Aborted) and "testbed ended" in r.reason
        ]
        verdict = [r for r in reasons if r["code"] == "aborted"]
    else:
        line = re.search(r"died \(killed by SIG|Open vSwitch died", text)
        event = [
            r
            for r in records
            if isinstance(r, ProcessEnded) and r.kind == process and not r.planned
        ]
        verdict = [
            r
            for r in reasons
            if r["code"].startswith("process_") and r["kind"] == process
        ]
        verdict = verdict or [r for r in reasons if r["code"] == "aborted"]
    code = run.process.returncode
    return {
        "exit_code": code,
        "line": line is not None,
        "event": bool(event),
        "verdict": bool(verdict),
        "went_on": code == 0,
        "left": clean(run.lab().id),
        "traceback": "Traceback" in text,
        "said": [
            said for said in run.lines if re.search("died|failed|ringlight: ", said)
        ],
        "last": run.lines[-3:] if "Traceback" in text else [],
    }


def is_right(entry: dict[str, Any]) -> bool:
    named = entry["line"] and entry["event"] and entry["verdict"]
    ends = entry["kind"] in (*ENDS_RUN, "Open vSwitch (SIGKILL)")
    promised = entry["went_on"] or ends or entry["kind"].startswith("Open vSwitch")
    return bool(named and promised and not entry["left"] and not entry["traceback"])
