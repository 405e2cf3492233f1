"""Documents of divided light in the REST API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ringlight.controller.light.documents import PlannedLight, Quantiles

#: Of each GPU to each other that it has light to, how many lightpaths.
Lightpaths = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Decision:
    """Division of light.

    ``t``: its beginning, monotonic seconds. ``left_bytes``: demand for which it was made. ``changed``: true
    if any switch passes something else than before. Durations: ``read_s`` to read the remaining demand,
    ``decide_s`` to divide, ``hold_s`` to make the O-NICs hold everything, ``write_s`` until the last switch
    had read back its write, the declared dark time included, ``dark_s`` from the hold until the O-NICs sent
    again. ``problem``: first failure. ``lightpaths``: lightpaths afterwards. ``turns``: if light follows
    phases, the turns for which it was made, each an iteration and a phase.
    """

    number: int
    t: float
    left_bytes: int
    changed: bool
    read_s: float
    decide_s: float
    hold_s: float
    write_s: float
    dark_s: float
    problem: str | None
    lightpaths: Lightpaths
    turns: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class DecisionStatistics:
    """Statistics of the divisions of light in the last job, with the durations of a :class:`Decision`.

    ``declared_s``: reconfiguration time from the switch profiles. ``dark_total_s``: dark time of all
    decisions together.
    """

    job: str
    decisions: int
    changed: int
    dark_total_s: float
    declared_s: float
    read: Quantiles
    decide: Quantiles
    hold: Quantiles
    write: Quantiles
    dark: Quantiles


@dataclass(frozen=True)
class DividedPart:
    """``interval_s``: how long a division holds, ``dark_s``: how long all is dark before it, seconds as
    emulated. ``job``: for which it is divided; ``lightpaths``: those that there are now."""

    mode: Literal["once", "again", "phases"]
    interval_s: float | None
    dark_s: float
    job: str | None
    trouble: str | None
    lightpaths: Lightpaths
    statistics: DecisionStatistics | None


@dataclass(frozen=True)
class DividedPlanned(PlannedLight):
    """``lightpaths``: those of the first division."""

    lightpaths: Lightpaths
