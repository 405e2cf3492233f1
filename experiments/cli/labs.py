"""Labs of commands, all of whose packet switches are driven: by our controller, or by programs beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ringlight.experiments.cli.common import fail, say
from ringlight.experiments.cli.options import OpenLab, Place, machine
from ringlight.testbed.lab_programs import program_kinds, waiting

if TYPE_CHECKING:
    from ringlight.experiments.language.expand import Experiment
    from ringlight.experiments.language.plan import Setting
    from ringlight.testbed.processes import LabProcesses


def processes_of_lab(
    scenario: Path,
    place: Place,
    lab: OpenLab,
    *,
    follow: bool,
    lends: bool = True,
    idle_hosts: bool = False,
) -> LabProcesses:
    """Return the processes of a lab that stays up, not started yet. The testbed keeps the lab's controller
    running.

    ``follow``: the processes end when this process ends. ``lends``: is passed to ``LabProcesses``.
    ``idle_hosts``: every GPU has an idle host from the start. Raises UserError and ScenarioError.
    """
    from ringlight.experiments.backends.emulation import lab_of_setting

    setting = place.setting(scenario, machine(lab))
    if (why := lab_of_setting.cannot_drive(setting.fabric)) is not None:
        fail(f"{scenario}: {why}", 2)
    (setting,) = _with_programs(scenario, [setting], lab)
    return lab_of_setting.processes_of(
        setting,
        lab.runtime,
        lab.addresses(),
        devices=lab.devices,
        idle_hosts=idle_hosts or any(p.needs_hosts for p in lab.requested_programs),
        follow=follow,
        lends=lends,
        programs=lab.requested_programs,
        notice=say,
    )


def with_programs(experiment: Experiment, lab: OpenLab) -> Experiment:
    """Return the experiment with its packet switches left to programs, or unchanged if no option names one.

    Raises UserError.
    """
    if not any(options.is_asked for options in lab.programs):
        return experiment
    for options in lab.requested_programs:
        if program_kinds()[options.name].controller is None:
            fail(f"--{options.name}: only labs that stay up have it: ringlight up", 2)
    settings = list(
        {id(plan.setting): plan.setting for plan in experiment.plans}.values()
    )
    made = _with_programs(Path(experiment.path), settings, lab)
    instead = {id(before): after for before, after in zip(settings, made, strict=True)}
    plans = tuple(
        replace(plan, setting=instead[id(plan.setting)]) for plan in experiment.plans
    )
    return replace(experiment, plans=plans)


def _with_programs(
    scenario: Path, settings: Sequence[Setting], lab: OpenLab
) -> list[Setting]:
    """Return the settings, with the packet switches left to programs that the options say."""
    made = list(settings)
    for options in lab.programs:
        made = options.given_to(scenario, made)
    programs = [options.name for options in lab.requested_programs]
    why = next(
        (why for setting in made if (why := waiting(setting.fabric, programs))), None
    )
    if why is not None:
        fail(f"{scenario}: fabric.{why}", 2)
    return made
