"""result.json: all figures of an experiment as tidy rows, and whether they can be believed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringlight.experiments.analysis.compare import (
    break_even_rows,
    comparison_rows,
    equality_rows,
    not_compared,
    smallest_slowdown_rows,
)
from ringlight.experiments.analysis.crossover import crossover_rows
from ringlight.experiments.analysis.fidelity import judged
from ringlight.experiments.analysis.metrics import Context, rows_of
from ringlight.experiments.analysis.prediction import Foretell
from ringlight.experiments.analysis.published import (
    agreement_rows,
    mean_rows,
    published_rows,
    standings,
)
from ringlight.experiments.analysis.rows import Label, Row, as_json
from ringlight.experiments.analysis.search import search_rows
from ringlight.experiments.analysis.statistics import over_repeats
from ringlight.experiments.analysis.table import Table
from ringlight.experiments.language.expand import Experiment
from ringlight.experiments.language.spec import CompareSpec
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.papers import paper
from ringlight.experiments.record.events import Record, RunFailed
from ringlight.experiments.record.folder import read_json
from ringlight.experiments.record.lab_records import LinkRate, PortRate
from ringlight.experiments.record.runs import Run, runs_of

SCHEMA_VERSION = 4
#: Keys of environment.json that are shown beside figures.
_FACTS = (
    "code",
    "started",
    "duration_s",
    "processor",
    "processors",
    "kernel",
    "distribution",
    "python",
)


@dataclass(frozen=True)
class Analysis:
    """All that is known of an experiment that was run. ``label``: how its figures are known.

    ``not_compared``: a line for each metric of a comparison of which there is no row.
    """

    experiment: Experiment
    runs: tuple[Run, ...]
    rows: tuple[Row, ...]
    fidelity: Mapping[str, Any]
    label: Label
    not_compared: tuple[str, ...] = ()


def analyse(
    experiment: Experiment,
    records: Iterable[Record],
    label: Label,
    rates: Iterable[PortRate] = (),
    latency_s: float = 0.0,
    foretell: Foretell | None = None,
) -> Analysis:
    """Return all figures of an experiment, with the verdict on them.

    ``rates``: throughput of ports, which a run folder keeps in a file of its own. ``latency_s``: emulated
    seconds that the simulation was set to add to each transfer. ``foretell``: function that simulates a run,
    for comparison with measured runs. Raises ScenarioError.
    """
    records, spec = list(records), experiment.spec
    contexts = [
        Context(run, label, foretell) for run in runs_of(records, experiment.plans)
    ]
    for context in contexts:
        # Before what is less important has taken the events that all simulations may take.
        context.simulate()
    runs = tuple(context.run for context in contexts)
    single = [row for context in contexts for row in rows_of(context)]
    rows = _with_comparisons(
        experiment,
        over_repeats([*single, *_link_rows(records, label)]),
        runs,
        label,
        latency_s,
    )
    fidelity: Mapping[str, Any] = {"verdict": label, "reasons": []}
    if label == "measured":
        baselines = {compare.baseline for compare in spec.compare}
        short = (
            {spec.break_even.arm, spec.break_even.baseline}
            if spec.break_even
            else set()
        )
        timed = baselines.union(*(compare.arms or () for compare in spec.compare))
        fidelity = judged(
            contexts, records, rates, baselines=baselines, untimed=short - timed
        )
    table = Table(row for row in rows if row.label == label)
    missing = tuple(
        line for compare in spec.compare for line in not_compared(compare, table)
    )
    return Analysis(experiment, runs, tuple(rows), fidelity, label, missing)


def _with_comparisons(
    experiment: Experiment,
    rows: Sequence[Row],
    runs: Sequence[Run],
    label: Label,
    latency_s: float,
) -> list[Row]:
    """Return the rows with those that follow from them, and the published rows."""
    spec, plans = experiment.spec, experiment.plans
    if spec.search is not None:
        rows = [*rows, *search_rows(spec.search, rows)]
    published, table, made = published_rows(spec, plans), Table(rows), list[Row]()
    in_papers = Table(published)
    for compare in spec.compare:
        published += _named(compare, comparison_rows(compare, in_papers), published)
        made += _named(compare, comparison_rows(compare, table), made)
        made += _named(compare, equality_rows(compare, table, plans), made)
        if label == "measured":
            made += _named(compare, smallest_slowdown_rows(compare, table, runs), made)
    if spec.break_even is not None:
        made += break_even_rows(spec.break_even, table, runs)
    if spec.crossover is not None:
        made += crossover_rows(spec.crossover, rows, plans)
    if spec.paper is not None and spec.paper.model is not None:
        forms = paper(spec.paper.model).closed_forms
        made += [row for run in runs for row in forms(run, latency_s)]
    made += mean_rows(spec, table, plans)
    made += agreement_rows(spec, [*rows, *made], plans)
    return [*standings([*rows, *made], published), *published]


def _named(
    compare: CompareSpec, rows: Iterable[Row], before: Sequence[Row]
) -> list[Row]:
    """An arm's figures against a second baseline have the comparison's name behind a dot."""
    taken = (
        {(row.arm, row.subject, row.metric) for row in before}
        if compare.name
        else set()
    )
    return [
        replace(row, metric=f"{row.metric}.{compare.name}")
        if (row.arm, row.subject, row.metric) in taken
        else row
        for row in rows
    ]


def _link_rows(records: Iterable[Record], label: Label) -> Iterator[Row]:
    """Yield rows of the rates of links before the runs, which are of no arm. Each lab of a fabric is a
    repeat."""
    measured: Counter[str] = Counter()
    for rate in records:
        if type(rate) is LinkRate:
            subject = f"link {rate.fabric} {rate.link} {rate.direction}"
            measured[subject] += 1
            row = Row(
                "",
                subject,
                "link_rate",
                rate.measured_bps,
                "bit/s",
                label,
                repeat=measured[subject],
            )
            yield row
            yield replace(
                row,
                metric="link_rate_share",
                value=rate.measured_bps / rate.set_bps,
                unit="1",
            )


def label_of(environment: Mapping[str, Any]) -> Label:
    """Return how the figures of a run folder are known: ``simulated`` or ``measured``."""
    return "simulated" if environment.get("label") == "simulated" else "measured"


def read_result(path: Path) -> dict[str, Any]:
    """Return the object of result.json of a run folder. Raises ScenarioError, one line naming the file."""
    result = read_json(path / "result.json")
    if result.get("schema") != SCHEMA_VERSION:
        raise ScenarioError(
            f"{path / 'result.json'}: its schema is {result.get('schema')}, not {SCHEMA_VERSION}; "
            f"make it anew: ringlight report {path}"
        )
    return result


def document(
    analysis: Analysis, records: Iterable[Record], environment: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the object of result.json.

    ``environment``: the run's environment.json, of which ``run``, ``backend``, ``arms``, ``points``,
    ``not_run`` and facts on machine and code are used.
    """
    experiment = analysis.experiment
    whole = {run.plan.name for run in analysis.runs}
    plans = experiment.plans_of(
        environment.get("arms") or (), environment.get("points") or ()
    )
    failed = (record for record in records if isinstance(record, RunFailed))
    return {
        "schema": SCHEMA_VERSION,
        "experiment": experiment.spec.name,
        "run": environment.get("run"),
        "backend": environment.get("backend"),
        "complete": all(plan.name in whole for plan in plans),
        **as_json(analysis.rows),
        "not_run": [
            {"arm": arm, "why": why}
            for arm, why in (environment.get("not_run") or {}).items()
        ],
        "failed": [{"run": record.run, "why": record.reason} for record in failed],
        "not_compared": list(analysis.not_compared),
        "fidelity": analysis.fidelity,
        "environment": {key: environment[key] for key in _FACTS if key in environment},
    }
