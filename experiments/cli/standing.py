"""Labs that stay up after the command that built them: ``ringlight up`` and ``ringlight down``."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from experiments.backends.emulation.processes import DOWN_S, Addresses, LabProcesses, belongs_to, remove_lab
from experiments.cli.common import UserError
from experiments.language.expand import Experiment
from experiments.language.plan import Setting
from experiments.language.text import ScenarioError
from testbed.lab import STATE_ROOT, Lab

_FILE = "standing.json"


def setting_of(experiment: Experiment, arm: str | None) -> Setting:
    """The setting of an arm, or the only one. Raises ScenarioError naming the arms."""
    wanted = [plan for plan in experiment.plans if arm is None or plan.arm == arm]
    if not wanted:
        raise ScenarioError(
            f"{experiment.path}: there is no arm {arm}; there are {', '.join(experiment.arms)}"
        )
    if len({id(plan.setting) for plan in wanted}) > 1:
        raise ScenarioError(
            f"{experiment.path}: it has several fabrics; name one by its arm with --arm: "
            f"{', '.join(experiment.arms)}"
        )
    return wanted[0].setting


def start_standing_lab(
    setting: Setting, where: str, runtime: str, addresses: Addresses, notice: Callable[[str], None]
) -> dict[str, Any]:
    """Build the lab and leave its processes running; what ``up --json`` prints. Raises BackendError.

    ``where``: the scenario file, as it is called.
    """
    processes = LabProcesses(setting, runtime, addresses, None, follow=False, notice=notice)
    processes.start()
    document = {
        "lab": processes.lab.id,
        "scenario": where,
        "runtime": runtime,
        "rest": addresses.rest,
        "openflow": addresses.openflow,
        "logs": str(processes.logs),
        "pids": processes.pids,
    }
    (processes.state / _FILE).write_text(json.dumps(document), encoding="utf-8")
    processes.leave()
    return document


def stop_standing_labs(lab_id: str | None, notice: Callable[[str], None]) -> list[str]:
    """End one standing lab or all of them; the ids of those ended. Raises UserError, LabError."""
    found = sorted(path.parent.name for path in STATE_ROOT.glob(f"*/{_FILE}"))
    if lab_id is not None:
        Lab(lab_id)
        if lab_id not in found:
            raise UserError(f"lab {lab_id} is not up; there is {', '.join(found) or 'none'}")
        found = [lab_id]
    for name in found:
        lab = Lab(name)
        pids = json.loads((lab.state_dir / _FILE).read_text(encoding="utf-8"))["pids"]
        for role in ("controller", "testbed"):
            _end(lab, role, pids.get(role), notice)
        remove_lab(lab)
    return found


def _end(lab: Lab, role: str, pid: int | None, notice: Callable[[str], None]) -> None:
    if pid is None or not belongs_to(lab, pid):
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_S
    while belongs_to(lab, pid):
        if time.monotonic() > deadline:
            notice(f"the {role} did not end within {DOWN_S:.0f} s and was killed")
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.05)
