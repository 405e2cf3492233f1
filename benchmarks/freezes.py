"""Freezes a process of a lab in the middle of each run, and looks whether the run says so. Needs root.

Stops (SIGSTOP) each kind of process, and the command itself, for 5 or 20 s at random moments over six
scenarios, and looks each time whether a line, an event and the verdict name it, whether the run ends, and
what of the lab is left.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness import need_root, show, tell
from benchmarks.kills import CASES, Case, processes, released, started, verdict_of
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.lab_records import ProcessFrozen
from ringlight.experiments.record.lines import read_records
from ringlight.testbed.emulation.clean import clean
from ringlight.testbed.emulation.vswitchd import PID_FILE
from tests.integration.test_run import RunningCommand

LONG_S = (5.0, 20.0)
#: What the records call it, by what is frozen.
KINDS = {"worker": "worker on GPU"}
COLUMNS = (
    "scenario", "kind", "moment_s", "frozen_s", "then_s", "line", "event", "verdict", "reason", "late",
    "code", "left",
)  # fmt: skip


def freezes(
    freezes: int = 20,
    seed: int = 52,
    first: int = 1,
    last: int | None = None,
    at_once: int = 3,
    runtime: Literal["namespace", "docker"] = "namespace",
) -> dict[str, Any]:
    """``first``, ``last``: numbers of freezes, for a part. ``at_once``: runs beside each other; no figure of
    theirs counts. Open vSwitch is the machine's, and every lab loses its packets while it stands still: such
    runs come last, one at a time. Run it alone."""
    need_root()
    planned = [*enumerate(plan(freezes, random.Random(seed)), start=1)][
        first - 1 : last
    ]
    shared = [one for one in planned if one[1][1] != "Open vSwitch"]
    with ThreadPoolExecutor(at_once) as pool:
        found = [*pool.map(lambda one: frozen(one[0], one[1], seed, runtime), shared)]
    found += [
        frozen(number, what, seed, runtime)
        for number, what in planned
        if what[1] == "Open vSwitch"
    ]
    found.sort(key=lambda entry: int(entry["number"]))
    show(
        (*COLUMNS, "right"),
        [(*(entry[key] for key in COLUMNS), is_right(entry)) for entry in found],
    )
    return {
        "freezes": found,
        "missed": [entry["number"] for entry in found if not is_right(entry)],
    }


def frozen(
    number: int, what: tuple[Case, str], seed: int, runtime: str
) -> dict[str, Any]:
    """One freeze; where the run was over before, once more and earlier."""
    (case, kind), own = what, random.Random(f"{seed} {number}")
    share, entry = own.uniform(0.02, 0.8), None
    while entry is None:
        entry = once(case, kind, share * case.lasts_s, LONG_S[number % 2], own, runtime)
        share /= 2
    tell(json.dumps({"number": number, **entry}))
    return {"number": number, **entry}


PARTS = (freezes,)


def plan(count: int, choice: random.Random) -> list[tuple[Case, str]]:
    """Choose freezes: the scenarios in turn, each of its kinds before any comes again."""
    left: dict[str, list[str]] = {}
    chosen: list[tuple[Case, str]] = []
    often: dict[str, int] = {}
    while len(chosen) < count:
        case = CASES[len(chosen) % len(CASES)]
        kinds = left.setdefault(case.file, [])
        if not kinds:
            kinds += [*case.kinds, "runner", "Open vSwitch"]
            choice.shuffle(kinds)
        # What was frozen least so far, in whatever scenario.
        kind = min(kinds, key=lambda kind: often.get(kind, 0))
        kinds.remove(kind)
        often[kind] = often.get(kind, 0) + 1
        chosen.append((case, kind))
    return chosen


def _pids(run: RunningCommand, kind: str) -> list[int]:
    if kind == "runner":
        return [run.process.pid]
    return (
        [int(PID_FILE.read_text())]
        if kind == "Open vSwitch"
        else processes(run.lab(), kind)
    )


def _ends(run: RunningCommand) -> bool:
    """Whether it ends within the deadline of such a command."""
    try:
        run.end()
    except AssertionError:
        return False
    return True


def once(
    case: Case,
    kind: str,
    moment_s: float,
    frozen_s: float,
    choice: random.Random,
    runtime: str,
) -> dict[str, Any] | None:
    """One freeze; None where the run was over before."""
    with tempfile.TemporaryDirectory() as name:
        run = started(case, Path(name), runtime)
        try:
            folder = released(run, Path(name) / "runs")
            time.sleep(moment_s)
            pids = _pids(run, kind)
            if not pids or run.process.poll() is not None:
                return None
            pid, began_s = choice.choice(pids), time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(frozen_s)
            finally:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            hangs = not _ends(run)
            took_s = time.monotonic() - began_s
            entry = looked_at(kind, run, folder)
        finally:
            run.stop()
    moments = {
        "moment_s": round(moment_s, 2),
        "frozen_s": frozen_s,
        "then_s": round(took_s, 1),
    }
    return {
        "scenario": Path(case.file).stem,
        "kind": kind,
        **moments,
        "hangs": hangs,
        **entry,
    }


def looked_at(kind: str, run: RunningCommand, folder: Path) -> dict[str, Any]:
    """What the run said of it, and what is left, which is removed."""
    reasons, text = verdict_of(folder), "\n".join(run.lines)
    records: list[Record] = []
    with suppress(OSError, RuntimeError, ValueError):
        records = read_records(folder / "events.jsonl")
    called = KINDS.get(kind, kind)
    events = [r for r in records if isinstance(r, ProcessFrozen) and r.kind == called]
    mine = [
        r
        for r in reasons
        if r["code"] in ("process_frozen", "frozen_outside_runs")
        and r["kind"] == called
    ]
    verdict = "none"
    with suppress(OSError, ValueError, KeyError):
        verdict = json.loads((folder / "result.json").read_text(encoding="utf-8"))[
            "fidelity"
        ]["verdict"]
    return {
        "code": run.process.poll(),
        "line": re.search(
            rf"{events[0].process} (stands still|goes on)"
            if events
            else "stands still",
            text,
        )
        is not None,
        "event": bool(events),
        "verdict": verdict,
        "reason": bool(mine),
        "late": [r["text"] for r in reasons if r["code"] == "event_late"],
        "others": [r["text"] for r in reasons if r not in mine],
        "left": clean(run.lab().id),
        "traceback": run.lines[-3:] if "Traceback" in text else [],
    }


def is_right(entry: dict[str, Any]) -> bool:
    named = (
        entry["line"]
        and entry["event"]
        and entry["reason"]
        and entry["verdict"] != "good"
    )
    return bool(
        named and not entry["hangs"] and not entry["left"] and not entry["traceback"]
    )
