"""Labs whose packet switches are all driven: by our controller, or by applications of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ringlight.experiments.cli.common import fail, say
from ringlight.experiments.cli.options import OpenLab, Place, machine

if TYPE_CHECKING:
    from ringlight.experiments.language.expand import Experiment
    from ringlight.experiments.language.plan import Setting
    from ringlight.testbed.processes import LabProcesses


def processes_of_lab(
    scenario: Path, place: Place, lab: OpenLab, *, follow: bool, lends: bool = True
) -> LabProcesses:
    """Return the processes of a lab that stays up, not started yet. The testbed keeps the lab's controller
    running.

    ``follow``: the processes end when this process ends. ``lends``: is passed to ``LabProcesses``. Raises
    UserError and ScenarioError.
    """
    from ringlight.experiments.backends.emulation import lab_of_setting

    setting = place.setting(scenario, machine(lab))
    if (why := lab_of_setting.cannot_drive(setting.fabric)) is not None:
        fail(f"{scenario}: {why}", 2)
    (setting,) = _for_applications(scenario, [setting], lab)
    return lab_of_setting.processes_of(
        setting,
        lab.runtime,
        lab.addresses(),
        devices=lab.devices,
        follow=follow,
        lends=lends,
        apps=lab.app or [],
        notice=say,
    )


def with_applications(experiment: Experiment, lab: OpenLab) -> Experiment:
    """Return the experiment with its packet switches left to applications, or unchanged if the options name
    none.

    Raises UserError.
    """
    if not (lab.app or lab.app_all or lab.observe_links):
        return experiment
    settings = list({id(plan.setting): plan.setting for plan in experiment.plans}.values())
    made = _for_applications(Path(experiment.path), settings, lab)
    instead = {id(before): after for before, after in zip(settings, made, strict=True)}
    plans = tuple(replace(plan, setting=instead[id(plan.setting)]) for plan in experiment.plans)
    return replace(experiment, plans=plans)


def _for_applications(scenario: Path, settings: Sequence[Setting], lab: OpenLab) -> list[Setting]:
    """Return the settings, with all packet switches left to applications if the options say so."""
    from ringlight.experiments.backends.emulation.lab_of_setting import all_for_applications, for_applications

    if lab.app_all and not lab.app:
        fail("--app-all: which application? name its file with --app", 2)
    if lab.observe_links and not lab.app:
        fail("--observe-links: for which application? name its file with --app", 2)
    copies = [all_for_applications(setting) if lab.app_all else setting for setting in settings]
    waiting = next((why for setting in copies if (why := for_applications(setting.fabric))), None)
    if waiting is not None and not lab.app:
        fail(f"{scenario}: {waiting}", 2)
    if lab.app and waiting is None:
        remedy = (
            "it has no packet switches"
            if lab.app_all
            else "say 'controller: app' of it in the fabric, or give them all with --app-all"
        )
        fail(f"--app: no packet switch of {scenario} is for applications; {remedy}", 2)
    return copies
