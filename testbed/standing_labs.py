"""Labs that were left standing: how commands find them, and how they end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ringlight.testbed.freezes import stands_still
from ringlight.testbed.lab import ENVIRONMENT, STATE_ROOT, Lab, LabError

#: Longest time for the orderly end of a process, seconds.
DOWN_S = 30.0
#: What is known of a lab that was left standing, in its state directory.
STANDING_FILE = "standing.json"


def remove(lab: Lab) -> None:
    """Remove whatever is left of a lab, by its labels."""
    # Here, as a simulation loads this module with the backends.
    from ringlight.testbed.emulation.clean import clean

    clean(lab.id)


def late_end(name: str) -> str:
    """Return the message about a process that did not end in time."""
    return f"the {name} did not end within {DOWN_S:.0f} s and was killed"


def end_standing(lab_id: str | None, notice: Callable[[str], None]) -> list[str]:
    """End one lab that was left running, or all of them. Return the ids of the labs that were ended.

    Raises LabError if the lab ``lab_id`` is not running.
    """
    ids = _standing()
    if lab_id is not None:
        Lab(lab_id)
        if lab_id not in ids:
            raise LabError(
                f"lab {lab_id} is not up; there is {', '.join(ids) or 'none'}"
            )
        ids = [lab_id]
    for lab in map(Lab, ids):
        # The testbed ends its controller; one whose testbed is dead is ended here.
        for name, pid in (_read_standing(lab)["pids"] | _kept_pids(lab)).items():
            _end_stranger(lab, name, pid, notice)
        remove(lab)
    return ids


def what_helps(address: str) -> str:
    """Return in one line which command helps if no controller answers at ``host:port``."""
    for lab in map(Lab, _standing()):
        # Only root may read them.
        with suppress(OSError, ValueError):
            known = _read_standing(lab)
            if known["rest"] == address:
                if lab.is_alive():
                    log_file = Path(known["logs"], "controller.log")
                    return f"lab {lab.id} is starting it again: try again in some seconds, or read {log_file}"
                return gone(lab)
    return "start one with: ringlight up SCENARIO"


def standstill(address: str) -> str:
    """Return in one line how a controller at ``host:port`` stands still; empty if none does."""
    for lab in map(Lab, _standing()):
        # Only root may read them.
        with suppress(OSError, ValueError):
            known = _read_standing(lab)
            pid = (known["pids"] | _kept_pids(lab)).get("controller", 0)
            if known["rest"] == address and (how := stands_still(pid)) is not None:
                return f"process {pid}, the controller of lab {lab.id}, stands still ({how})"
    return ""


def gone(lab: Lab) -> str:
    """Return the message about a lab that was left running and whose testbed is dead."""
    return f"the testbed of lab {lab.id} has ended; remove what is left with: ringlight down {lab.id}"


def dead_labs() -> list[Lab]:
    """Return the labs that were left running and whose testbed is dead."""
    return [lab for lab in map(Lab, _standing()) if not lab.is_alive()]


def _standing() -> list[str]:
    return sorted(path.parent.name for path in STATE_ROOT.glob(f"*/{STANDING_FILE}"))


def _read_standing(lab: Lab) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        (lab.state_dir / STANDING_FILE).read_text(encoding="utf-8")
    )
    return document


def _kept_pids(lab: Lab) -> dict[str, int]:
    """Return the ids of the processes that the testbed keeps running now, by name."""
    try:
        inventory = json.loads(
            (lab.state_dir / "inventory.json").read_text(encoding="utf-8")
        )
    except (OSError, ValueError):
        return {}
    return {
        name: entry["pid"] for name, entry in inventory.get("processes", {}).items()
    }


def _end_stranger(lab: Lab, name: str, pid: int, notice: Callable[[str], None]) -> None:
    """End a process that is not this one's child."""
    deadline = time.monotonic() + DOWN_S
    with suppress(ProcessLookupError):
        if belongs_to(lab, pid):
            os.kill(pid, signal.SIGTERM)
        while belongs_to(lab, pid):
            if time.monotonic() > deadline:
                notice(late_end(name))
                os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.05)


def belongs_to(lab: Lab, pid: int) -> bool:
    """Return whether a process lives and belongs to a lab: its number may have been given to another process
    since.
    """
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{ENVIRONMENT}={lab.id}".encode() in environment
