"""The cross-check of a study in a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.runner.machine import scale_here
from ringlight.experiments.runner.progress import Reporter
from ringlight.experiments.scripting.study import Study
from ringlight.extensions.crosscheck.command import run_crosscheck


def crosscheck(
    study: Study,
    *,
    limit: float = 10.0,
    runtime: str = "docker",
    runs: str | Path = "runs",
    quiet: bool = False,
) -> dict[str, Any]:
    """Emulate and simulate a study, and compare; needs root. Return the object of crosscheck.json.

    ``limit``: largest difference allowed, per cent. ``runtime``, ``runs``, ``quiet``: as of
    :meth:`Study.emulate`, which raises the same.
    """
    experiment = study.experiment(scale_here, auto=True)
    emulation, simulation = EmulationBackend(runtime), SimulationBackend()
    reporter = Reporter(quiet=quiet)
    _, result = run_crosscheck(
        experiment, emulation, simulation, Path(runs), reporter, limit_percent=limit
    )
    return result
