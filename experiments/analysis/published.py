"""A paper's figures beside the run's: what they are, and what agreement with them is worth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from experiments.analysis.metrics import metrics, selected
from experiments.analysis.rows import Row, Standing, where
from experiments.analysis.statistics import is_number
from experiments.language.plan import RunPlan
from experiments.language.spec import FileSpec, PublishedSpec
from fabric.utilisation import waiting_counted


def published_rows(spec: FileSpec, plans: Sequence[RunPlan]) -> list[Row]:
    """The figures that a file says are published; of a range two rows, its ends."""
    used = {key for parameter in spec.parameters.values() for key in parameter.fitted_to}
    return [row for figure in spec.published for row in _rows(figure, plans, used)]


def _rows(figure: PublishedSpec, plans: Sequence[RunPlan], used: Iterable[str]) -> Iterator[Row]:
    standing: Standing = "fitted" if f"{figure.arm}.{figure.metric}" in used else "predicted"
    name = name_of(figure)
    row = Row(figure.arm, subject_of(figure, plans), name, None, "1", "published", standing=standing)
    if figure.value is not None:
        yield replace(row, value=figure.value.value, unit=figure.value.unit)
    for end, word in zip(figure.range or (), ("from", "to"), strict=False):
        yield replace(row, metric=f"{name}_{word}", value=end.value, unit=end.unit)


def name_of(figure: PublishedSpec) -> str:
    """The metric that it is of; over another arm, the ratio's."""
    return f"{figure.metric}_ratio" if figure.over else figure.metric


def subject_of(figure: PublishedSpec, plans: Sequence[RunPlan]) -> str:
    """What it is of: its job, the only one where it names none, the fabric or the run."""
    plan = next(plan for plan in plans if plan.arm == figure.arm)
    known = metrics().get(figure.metric)
    if figure.job is not None or known is None or known.of == "job":
        return f"job {figure.job or plan.jobs[0].name}"
    return f"fabric {plan.setting.name}" if known.of == "fabric" else "run"


def standings(rows: Iterable[Row], published: Sequence[Row]) -> list[Row]:
    """The run's rows, each that a published one stands beside with its standing."""
    known: Mapping[tuple[str, str, str], Standing] = {
        (row.arm, row.subject, row.metric): row.standing for row in published
    }
    return [
        replace(row, standing=standing)
        if (standing := known.get((row.arm, row.subject, row.metric))) is not None
        else row
        for row in rows
    ]


def agreement_rows(spec: FileSpec, rows: Sequence[Row], plans: Sequence[RunPlan]) -> Iterator[Row]:
    """Whether the run's figures are within a published range, each definition of a metric by itself.

    Of a published gain of GPU utilisation also from and to which share (0..1) of the time without computing
    must count for it.
    """
    for figure in spec.published:
        if figure.range is None:
            continue
        least, most = (end.value for end in figure.range)
        subject, tail = subject_of(figure, plans), "_ratio" if figure.over else ""
        mine = where(rows, arm=figure.arm, subject=subject, repeat=None)
        for row in mine:
            base = row.metric.removesuffix(tail)
            asked = base + tail == row.metric and selected([replace(row, metric=base)], figure.metric)
            if asked and is_number(row.value):
                agrees = least <= row.value <= most
                yield replace(row, metric=f"{row.metric}_agrees", value=agrees, unit="", spread=None)
        if figure.metric == "gpu_utilisation" and figure.over:
            yield from _waiting(figure, least, most, subject, rows)


def _waiting(
    figure: PublishedSpec, least: float, most: float, subject: str, rows: Sequence[Row]
) -> Iterator[Row]:
    wanted = {"subject": subject, "metric": "gpu_utilisation.compute", "repeat": None}
    after, before = (where(rows, arm=arm, **wanted) for arm in (figure.arm, figure.over))
    if not after or not before:
        return
    first, last = before[0].value, after[0].value
    if not is_number(first) or not is_number(last):
        return
    # The more of the waiting counts, the smaller is the gain: from that of computing alone down to 1.
    full = last / first
    if not (least <= full and most >= 1):
        return
    shares = (
        0.0 if most >= full else waiting_counted(first, last, most),
        1.0 if least <= 1 else waiting_counted(first, last, least),
    )
    for word, share in zip(("from", "to"), shares, strict=True):
        yield replace(after[0], metric=f"waiting_counted_{word}", value=share, label="analytic", spread=None)
