"""A run whose disk fills up, at many moments, one run each. Needs root.

Options of ``ringlight run`` may be added. The run folder is on a small tmpfs of its own; at the moment, a
file takes all the room that is left. What is said, the exit code, whether the events written so far can be
read, and what of the lab is left are printed as JSON. With ``--state`` it is the lab's own directory
(``/run/ringlight``) that fills up, in a mount namespace of its own. Workers run in network namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ringlight.experiments.record.events import read_records
from ringlight.testbed.emulation.clean import clean, clean_objects
from ringlight.testbed.lab import STATE_ROOT, Lab

ROOT = Path(__file__).resolve().parents[1]
TMPFS_BYTES = 32 << 20
DEADLINE_S = 180.0


def fill(folder: Path) -> None:
    """Take all the room that is left."""
    with (folder / "ballast").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    with (folder / "ballast").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(512))


def once(moment_s: float | None, command: list[str], runs: Path, full: Path) -> dict[str, Any]:
    """One run; ``full`` is filled ``moment_s`` seconds after its start, or never."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=_environment()
    )
    try:
        if moment_s is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(moment_s)
            fill(full)
        _, said = process.communicate(timeout=DEADLINE_S)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
    lines = said.splitlines()
    labs = [Lab(found[1]) for line in lines if (found := re.search(r"lab (\w+) is up", line))]
    left = [thing for lab in labs for thing in clean_objects(lab)]
    left += [str(lab.state_dir) for lab in labs if lab.state_dir.exists()]
    for lab in labs:
        clean(lab.id)
    return {
        "moment_s": moment_s,
        "took_s": round(time.monotonic() - began, 1),
        "during": next((line.split("s  ", 1)[-1] for line in reversed(lines[:-1]) if "s  " in line), ""),
        "exit_code": process.returncode,
        "said": [line for line in lines if line.startswith("ringlight: ")],
        "traceback": any("Traceback" in line for line in lines),
        "events": {
            folder.name: _events(folder / "events.jsonl") for folder in runs.iterdir() if folder.is_dir()
        },
        "left": left,
    }


def _environment() -> dict[str, str]:
    return {**os.environ, "NO_COLOR": "1"}


def _events(path: Path) -> int | str:
    """How many can be read; the file must end with a whole line."""
    try:
        text = path.read_text(encoding="utf-8")
        count = len(read_records(path))
    except (OSError, RuntimeError, ValueError) as error:
        return str(error)
    return count if not text or text.endswith("\n") else "its last line is cut short"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", type=Path, default=ROOT / "tests/data/mini.yaml")
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--state", action="store_true", help="fill the lab's own directory instead")
    parser.add_argument("--within", type=float, metavar="SECONDS", help="spread over these, not a whole run")
    parser.add_argument("--first", type=int, default=1, help="number of the first moment, to go on with")
    chosen, options = parser.parse_known_args()
    if chosen.state and os.environ.get("RINGLIGHT_UNSHARED") != "1":
        os.environ["RINGLIGHT_UNSHARED"] = "1"
        os.execvp("unshare", ["unshare", "-m", sys.executable, "-m", "benchmarks.disk_full", *sys.argv[1:]])
    found: list[dict[str, Any]] = []
    whole_s = chosen.within or 0.0
    numbers = range(chosen.first, chosen.moments + 1)
    for number in numbers if chosen.within else (0, *numbers):
        with tempfile.TemporaryDirectory() as name:
            runs = Path(name)
            full = STATE_ROOT if chosen.state else runs
            full.mkdir(exist_ok=True)
            mount = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "ringlight-full", str(full)]
            subprocess.run(mount, check=True)
            try:
                command = [sys.executable, "-m", "ringlight.experiments.cli.app", "run", str(chosen.scenario)]
                command += ["--runs", str(runs), "--runtime", "namespace", *options]
                # The first has room, and tells how long one takes.
                moment_s = None if number == 0 else whole_s * (number - 0.5) / chosen.moments
                entry = once(moment_s, command, runs, full)
                print(json.dumps(entry), file=sys.stderr, flush=True)
                if number == 0:
                    whole_s = entry["took_s"]
                else:
                    found.append(entry)
            finally:
                subprocess.run(["umount", str(full)], check=True)
    bad = [
        entry
        for entry in found
        if entry["traceback"]
        or entry["left"]
        or entry["exit_code"] not in (0, 1)
        or (entry["exit_code"] == 1 and len(entry["said"]) != 1)
        or any(isinstance(count, str) for count in entry["events"].values())
    ]
    print(
        json.dumps(
            {
                "filled": "lab's directory" if chosen.state else "run folder",
                "moments": len(found),
                "within_s": whole_s,
                "one_line_exit_code_1": sum(e["exit_code"] == 1 and len(e["said"]) == 1 for e in found),
                "over_before": sum(e["exit_code"] == 0 for e in found),
                "not_as_wanted": bad,
            },
            indent=2,
        )
    )
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
