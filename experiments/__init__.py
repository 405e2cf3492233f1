"""Experiments from Python: load a scenario file, run it, and have its figures as rows.

import experiments

found = experiments.load("scenarios/disaggregation.yaml")
results = experiments.run(found, backend="simulation")
for row in results.rows:
    print(row.arm, row.subject, row.metric, row.value, row.unit)
results.frame()        # the same for pandas, where it is installed
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from experiments.analysis.rows import Row
    from experiments.language.expand import Experiment


@dataclass(frozen=True)
class Results:
    """``path``: the run folder; ``rows``: every figure; ``failures``: a line for each that went wrong."""

    path: Path
    rows: list[Row]
    failures: tuple[str, ...]
    result: dict[str, Any]

    def frame(self) -> pd.DataFrame:
        """The rows as a pandas frame. Raises ScenarioError where pandas is not installed."""
        from experiments.analysis.frames import frame

        return frame(self.rows)


def load(path: str | Path) -> Experiment:
    """The experiment in a YAML file, with its run plans. Raises ScenarioError, one line."""
    from experiments.language.expand import load as load_file

    return load_file(path)


def run(
    experiment: Experiment | str | Path,
    backend: str = "simulation",
    *,
    arms: Collection[str] = (),
    repeat: int | None = None,
    runs: str | Path = "runs",
    processes: int | None = None,
    dask: str | None = None,
) -> Results:
    """Make an experiment's runs, as ``ringlight run`` (backend ``emulation``) or ``simulate`` does.

    Raises ValueError for another backend, ScenarioError, BackendError and WriteError with one line.
    """
    from experiments.analysis.rows import from_json
    from experiments.runner.command import backend_named, carry_out_file

    path = Path(experiment if isinstance(experiment, str | Path) else experiment.path)
    done, result = carry_out_file(
        path, backend_named(backend), Path(runs), arms=arms, repeat=repeat, processes=processes, dask=dask
    )
    return Results(done.path, from_json(result["rows"]), done.failures, result)
