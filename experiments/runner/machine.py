"""Calibration of this machine, and the scale of runs that leave it to the machine.

A calibration is kept in the user's cache, for as long as processor, kernel and commit are the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ringlight.experiments.analysis.carrying import MEASURED, REFERENCE, Costs
from ringlight.experiments.analysis.scaling import choose_scale
from ringlight.experiments.language.plan import ChosenScale, RunPlan
from ringlight.experiments.record.environment import describe_machine
from ringlight.experiments.record.writing import write_json, writing
from ringlight.testbed.devices import any_forwards

#: Seconds of a lab's bring-up, of each batch of links that are measured besides filling them, and of a run
#: besides its jobs; and what each GPU adds. Measured with 64 GPUs on two processors (2026-11-26): 6.4 to
#: 11.8 s, 1.1 to 5 s and 5 s.
LAB_S, BATCH_S, RUN_S = (2.0, 0.1), (0.5, 0.02), (1.0, 0.08)


@dataclass(frozen=True)
class Takes:
    """Seconds that an emulation takes: to build labs, to measure links, and of the runs."""

    bring_up: float
    links: float
    runs: float


def takes(plans: Sequence[RunPlan]) -> Takes:
    """Return about how many seconds the emulation of these runs takes, by phase."""
    from ringlight.experiments.analysis.prediction import expected_s
    from ringlight.experiments.backends.emulation.linktest import parts
    from ringlight.fabric.keys import plugged
    from ringlight.fabric.parts import canonical

    bring_up = links = 0.0
    for setting in {id(plan.setting): plan.setting for plan in plans}.values():
        fabric = plugged(setting.fabric)
        gpus = len(fabric.gpus)
        tests, _ = parts(
            fabric, canonical((str(a), str(b)) for a, b in fabric.circuits)
        )
        batches = sum(len(part.batches) for part in tests)
        bring_up += LAB_S[0] + LAB_S[1] * gpus
        links += batches * (setting.link_test_s + BATCH_S[0] + BATCH_S[1] * gpus)
    runs = sum(
        RUN_S[0]
        + RUN_S[1] * sum(job.gpus for job in plan.jobs)
        + max(expected_s(plan).values(), default=0.0)
        for plan in plans
    )
    return Takes(bring_up, links, runs)


#: Share of the processors that others may have had while a calibration was measured that counts.
MOST_TAKEN = 0.25
#: The least that a frame costs at a switch, seconds: below it the measurement sees nothing.
LEAST_S = 1e-6
#: Seconds of a wake-up on the AMD EPYC with 2 processors on which runs of 64 GPUs kept to
#: ``carrying.MEASURED`` (2026-11-26): what workers of Python cost elsewhere goes by it.
WAKE_S = 7.8e-6


@dataclass(frozen=True)
class Calibration:
    """Measurements (``testbed.emulation.calibration.Measured``) of a machine, with machine and date."""

    measured: Mapping[str, Any]
    machine: Mapping[str, Any]
    when: str

    @property
    def costs(self) -> Costs:
        """Return the costs of a plan's traffic here: of workers scaled by their speed, of switches as
        measured.
        """
        slower, of = self.measured["wake"] / WAKE_S, self.measured
        carried = of["switched"] if of["carried"] is None else of["carried"]
        return Costs(
            message=slower * MEASURED.message,
            frame=slower * MEASURED.frame,
            switched=max(LEAST_S, of["switched"]),
            step=slower * MEASURED.step,
            port=of["port"],
            carried=max(LEAST_S, carried),
            wake=slower * MEASURED.wake,
        )

    @property
    def counts(self) -> bool:
        """Return whether other processes left the calibration enough of the processors."""
        return bool(self.measured["taken"] <= MOST_TAKEN)

    @property
    def name(self) -> str:
        return f"this machine ({self.machine['processor']}, measured {self.when})"


def calibrate(say: Callable[[str], None]) -> Calibration:
    """Measure this machine, and keep the calibration. Return it. Needs root and Open vSwitch.

    A disturbed calibration does not replace a kept one that counts. Raises NetworkError, LabError.
    """
    from ringlight.testbed.emulation.calibration import calibrate as measure

    measured = measure(say)
    calibration = Calibration(asdict(measured), _machine(), _today())
    if not calibration.counts:
        disturbed = f"other programs used {100 * measured.taken:.0f} % of the processors: not kept"
        say(f"{disturbed}; again with: ringlight calibrate")
        if kept() is not None:
            return calibration
    path = _path()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, asdict(calibration))
    return calibration


def kept() -> Calibration | None:
    """Return the calibration of this machine in its present state; None if there is none that counts."""
    calibration = _last()
    return calibration if calibration is not None and calibration.counts else None


def _last() -> Calibration | None:
    """Return the last calibration, unless it is of another machine."""
    try:
        document = json.loads(_path().read_text(encoding="utf-8"))
        kept_of = Calibration(
            document["measured"], document["machine"], document["when"]
        )
        # Computed here, as a file of another version may lack what they follow from.
        return (
            kept_of
            if kept_of.machine == _machine()
            and kept_of.costs
            and kept_of.counts is not None
            else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _machine() -> dict[str, Any]:
    facts = describe_machine(simulated=True)
    return {
        key: facts.get(key) for key in ("processor", "processors", "kernel", "commit")
    }


def _today() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).date().isoformat()


def _path() -> Path:
    """Return the path of the calibration: ``RINGLIGHT_CALIBRATION``, or a file in the user's cache."""
    if named := os.environ.get("RINGLIGHT_CALIBRATION"):
        return Path(named)
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder, "ringlight", "calibration.json")


def real_scale(plans: Sequence[RunPlan]) -> ChosenScale:
    """Return the scale 1. Plans that are only simulated have the real fabric's times and rates on any
    machine.
    """
    return ChosenScale(time=1.0, payload=1.0, limit="", wants={}, busy=0.0, costs="")


def scale_here(
    plans: Sequence[RunPlan],
    *,
    devices: Sequence[str] = (),
    measure: Callable[[str], None] | None = None,
) -> ChosenScale:
    """Return one scale at which this machine carries all of these runs, in labs with these devices.

    ``measure``: if this machine has no calibration, make one, and report it by this function. A calibration
    that does not count is repeated at most once a day. Without ``measure``, or if no calibration counts, the
    costs of the reference machine are used. Raises NetworkError, LabError.
    """
    calibration = _last()
    if measure is not None and (
        calibration is None or not (calibration.counts or calibration.when == _today())
    ):
        measure("calibrating this machine, once")
        calibration = calibrate(measure)
    if calibration is not None and not calibration.counts:
        calibration = None
    costs, name = (
        (MEASURED, REFERENCE)
        if calibration is None
        else (calibration.costs, calibration.name)
    )
    if any_forwards(devices):
        costs = costs.past_switches()
    return choose_scale(plans, costs, os.cpu_count() or 1, name)
