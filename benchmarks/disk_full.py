"""A run whose disk fills up, at many moments, one run each. Needs root.

The run folder is on a small tmpfs of its own; at the moment, a file takes all the room that is left. What is
said, the exit code, whether the events written so far can be read, and what of the lab is left are told.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, need_root, tell
from ringlight.experiments.record.events import read_records
from ringlight.testbed.emulation.clean import clean
from ringlight.testbed.lab import STATE_ROOT
from tests.integration.test_run import RunningCommand

TMPFS_BYTES = 32 << 20


def disk_full(
    scenario: Path = ROOT / "tests/data/mini.yaml",
    moments: int = 20,
    state: bool = False,
    within: float | None = None,
    first: int = 1,
    option: list[str] = [],
) -> dict[str, Any]:
    """``state``: the lab's own directory (``/run/ringlight``) fills up instead, in a mount namespace of its
    own. ``within``: moments are spread over so many seconds, not a whole run. ``first``: number of the first
    moment, to go on with. ``option``: of ``ringlight run``; workers run in network namespaces."""
    need_root()
    if state and os.environ.get("RINGLIGHT_UNSHARED") != "1":
        os.environ["RINGLIGHT_UNSHARED"] = "1"
        os.execvp("unshare", ["unshare", "-m", sys.executable, "-m", "benchmarks", *sys.argv[1:]])
    whole_s, found = within or 0.0, []
    numbers = range(first, moments + 1)
    # Number 0 has room, and tells how long a run takes.
    for number in numbers if within else (0, *numbers):
        moment_s = whole_s * (number - 0.5) / moments if number else None
        entry = once(moment_s, scenario, option, state)
        tell(str(entry))
        if number:
            found.append(entry)
        else:
            whole_s = entry["took_s"]
    return {
        "filled": "lab's directory" if state else "run folder",
        "moments": len(found),
        "within_s": whole_s,
        "one_line_exit_code_1": sum(e["exit_code"] == 1 and len(e["said"]) == 1 for e in found),
        "over_before": sum(e["exit_code"] == 0 for e in found),
        "missed": [entry for entry in found if not is_right(entry)],
    }


PARTS = (disk_full,)


def is_right(entry: dict[str, Any]) -> bool:
    said_why = entry["exit_code"] == 0 or (entry["exit_code"] == 1 and len(entry["said"]) == 1)
    unreadable = any(isinstance(count, str) for count in entry["events"].values())
    return said_why and not (entry["traceback"] or entry["left"] or unreadable)


def once(moment_s: float | None, scenario: Path, options: list[str], state: bool) -> dict[str, Any]:
    """One run; its disk is filled ``moment_s`` seconds after its start, or never."""
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name)
        full = STATE_ROOT if state else runs
        full.mkdir(exist_ok=True)
        size = f"size={TMPFS_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "ringlight-full", str(full)], check=True)
        try:
            began = time.monotonic()
            run = RunningCommand(runs, "--runtime", "namespace", *options, scenario=scenario)
            try:
                if moment_s is not None:
                    with suppress(subprocess.TimeoutExpired):
                        run.process.wait(moment_s)
                    fill(full)
                code, _ = run.end()
                left = [thing for lab in run.labs() for thing in clean(lab.id)]
            finally:
                run.stop()
            folders = [folder for folder in runs.iterdir() if folder.is_dir()]
            return {
                "moment_s": moment_s,
                "took_s": round(time.monotonic() - began, 1),
                "during": next((line.split("s  ", 1)[-1] for line in run.lines[-2::-1] if "s  " in line), ""),
                "exit_code": code,
                "said": [line for line in run.lines if line.startswith("ringlight: ")],
                "traceback": any("Traceback" in line for line in run.lines),
                "events": {folder.name: events_in(folder / "events.jsonl") for folder in folders},
                "left": left,
            }
        finally:
            subprocess.run(["umount", str(full)], check=True)


def fill(folder: Path) -> None:
    """Take all the room that is left."""
    for size in (1 << 16, 512):
        with (folder / "ballast").open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(size))


def events_in(path: Path) -> int | str:
    """How many can be read; the file must end with a whole line."""
    try:
        text = path.read_text(encoding="utf-8")
        count = len(read_records(path))
    except (OSError, RuntimeError, ValueError) as error:
        return str(error)
    return count if not text or text.endswith("\n") else "its last line is cut short"
