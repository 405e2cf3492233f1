"""Experiments from Python: load a scenario file, run it, and have its figures as rows.

from ringlight import experiments

found = experiments.load("scenarios/disaggregation.yaml")
results = experiments.run(found, backend="simulation")
for row in results.rows:
    print(row.arm, row.subject, row.metric, row.value, row.unit)
results.frame()        # the same for pandas, where it is installed
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from ringlight.experiments.analysis.rows import Row
    from ringlight.experiments.backends.protocol import Backend
    from ringlight.experiments.language.expand import Experiment


@dataclass(frozen=True)
class Results:
    """``path``: the run folder; ``rows``: every figure; ``failures``: a line for each that went wrong."""

    path: Path
    rows: list[Row]
    failures: tuple[str, ...]
    result: dict[str, Any]

    def frame(self) -> pd.DataFrame:
        """Return the rows as a pandas frame. Raises ScenarioError if pandas is not installed."""
        from ringlight.experiments.analysis.rows import frame

        return frame(self.rows)


def load(path: str | Path, *, repeat: int | None = None) -> Experiment:
    """Return the experiment in a YAML file, with its run plans. ``repeat``: number of repeats, in place of
    the file's.

    Raises ScenarioError, one line.
    """
    from ringlight.experiments.runner.command import load_checked

    return load_checked(Path(path), repeat)


def run(
    experiment: Experiment | str | Path,
    backend: str = "simulation",
    *,
    arms: Collection[str] = (),
    runs: str | Path = "runs",
    processes: int | None = None,
    executor: str | None = None,
) -> Results:
    """Make the runs of an experiment, or of a YAML file. Return their results.

    Like ``ringlight simulate``, or ``ringlight run`` with the backend ``emulation``. A script that makes many
    runs needs the usual ``if __name__ == "__main__":``, because the runs are spread over processes that read
    the script again. ``executor``: machines of an extension that compute simulated runs, or build the labs of
    emulated runs, ``NAME:ADDRESS``.

    Raises ValueError for another backend, ScenarioError, BackendError, LabError and WriteError with one line.
    """
    from ringlight.experiments.analysis.rows import from_json
    from ringlight.experiments.runner.command import backend_named, carry_out_experiment
    from ringlight.experiments.runner.executor_kinds import backend_at

    loaded = load(experiment) if isinstance(experiment, str | Path) else experiment
    with ExitStack() as opened:
        made_by: Backend
        if backend == "emulation" and executor is not None:
            made_by, executor = opened.enter_context(backend_at(executor)), None
        else:
            made_by = backend_named(backend)
        done, result = carry_out_experiment(
            loaded, made_by, Path(runs), arms=arms, processes=processes, executor=executor
        )
    return Results(done.path, from_json(result), done.failures, result)
