"""Options for applications of others (Ryu, os-ken): which packet switches they get."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ringlight.experiments.cli.common import fail

if TYPE_CHECKING:
    from ringlight.experiments.language.plan import Setting


def for_applications(
    scenario: Path, settings: Sequence[Setting], apps: Sequence[Path], every: bool
) -> list[Setting]:
    """The settings, with all packet switches for applications (``every``).

    Raises UserError where there are switches for applications and none of these, or the other way round.
    """
    from ringlight.experiments.backends.emulation.requests import all_for_applications

    if every and not apps:
        fail("--app-all: which application? name its file with --app", 2)
    if every:
        settings = [all_for_applications(setting) for setting in settings]
    theirs = [
        name
        for setting in settings
        for name, switch in setting.fabric.packet_switches.items()
        if switch.controller == "app"
    ]
    if theirs and not apps:
        where = f"{scenario}: fabric.packet_switches.{theirs[0]}.controller"
        fail(f"{where}: app, and no application was given; name one with --app", 2)
    if apps and not theirs:
        remedy = (
            "it has no packet switches"
            if every
            else "say 'controller: app' of it in the fabric, or give them all with --app-all"
        )
        fail(f"--app: no packet switch of {scenario} is for applications; {remedy}", 2)
    return list(settings)
