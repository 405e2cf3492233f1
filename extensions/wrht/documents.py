"""Documents of rings in the REST API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringlight.controller.light.documents import PlannedLight, Quantiles
from ringlight.fabric.crossconnect import Emit


@dataclass(frozen=True)
class SetUp:
    """Change of a ring's light between two steps.

    ``t``: time when it was due (the previous step over, and a flow waiting), CLOCK_MONOTONIC seconds.
    ``step``: number of the step, continued over iterations. ``switches``: number of switches written.
    ``write_s``: seconds from ``t`` until the last driver had read back its write, the declared dark time
    included. ``total_s``: seconds from ``t`` until the flows were notified.
    """

    t: float
    step: int
    switches: int
    write_s: float
    total_s: float


@dataclass(frozen=True)
class SetUpStatistics:
    """Statistics of the changes of light in the last job.

    ``declared_s``: reconfiguration time from the switch profiles.
    """

    job: str
    count: int
    set_ups_per_iteration: int
    declared_s: float
    total: Quantiles
    write: Quantiles
    switches: int


@dataclass(frozen=True)
class Playing:
    """Position of a job's collective.

    ``step``: number of the step, continued over iterations. ``setting``: the step whose light is set.
    """

    job: str
    steps: int
    step: int | None
    iteration: int | None
    setting: int | None
    trouble: str | None


@dataclass(frozen=True)
class RingPart:
    """``playing``: the job that has the ring; ``statistics``: of the last one."""

    playing: Playing | None
    statistics: SetUpStatistics | None


@dataclass(frozen=True)
class RingPlanned(PlannedLight):
    """``set_ups``: changes of light in an iteration; ``transmit``: how each node sends to each peer."""

    steps: int
    set_ups: int
    transmit: Mapping[str, Mapping[str, Emit]]
