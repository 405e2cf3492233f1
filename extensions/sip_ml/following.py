"""Phases of a workload as what its light may follow."""

from __future__ import annotations

from typing import Any

from ringlight.extensions.sip_ml.phases import Progress
from ringlight.extensions.sip_ml.workload_phases import phases_of
from ringlight.workloads.graph import Workload


class Phases:
    """Light that follows the phases of a workload (``workloads.following.Following``)."""

    word = "phases"

    def progress(self, workload: Workload, rank: int) -> Progress | None:
        """Return the way of a rank through its phases; None if it has none. Raises ValueError."""
        own = phases_of(workload).phase_of[rank]
        return Progress(own) if own else None

    def check(self, run: Any, job: Any, plane: Any) -> None:
        """Check that light can be set for each phase of a job. Raises ValueError."""
        # Workers do without.
        from ringlight.extensions.sip_ml.wholes.fitting import check_phases

        check_phases(run, job, plane)


PHASES = Phases()
