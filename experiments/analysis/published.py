"""A paper's figures beside the run's: what they are, and what agreement with them is worth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from experiments.analysis.metrics import metrics, selected
from experiments.analysis.rows import Row, Standing, where
from experiments.analysis.statistics import is_number
from experiments.language.plan import RunPlan
from experiments.language.spec import Figure, FileSpec, PublishedSpec
from fabric.utilisation import waiting_counted

#: Utilisation from which others follow: only computing counts.
_COMPUTING = "gpu_utilisation.compute"


def published_rows(spec: FileSpec, plans: Sequence[RunPlan]) -> list[Row]:
    """The figures that a file says are published, in their metrics' units; of a range two rows, its ends."""
    used = {key for parameter in spec.parameters.values() for key in parameter.fitted_to}
    made = []
    for figure in spec.published:
        known = metrics().get(figure.metric)
        name, unit = name_of(figure), "1" if figure.over or known is None else known.unit
        standing: Standing = "fitted" if f"{figure.arm}.{figure.metric}" in used else "predicted"
        row = Row(figure.arm, subject_of(figure, plans), name, None, unit, "published", standing=standing)
        if figure.value is not None:
            made.append(replace(row, value=_in(unit, figure.value)))
        for end, word in zip(figure.range or (), ("from", "to"), strict=False):
            made.append(replace(row, metric=f"{name}_{word}", value=_in(unit, end)))
    return made


def _in(unit: str, figure: Figure) -> float:
    """A share may be given in per cent."""
    return figure.value / 100 if figure.unit == "%" and unit == "1" else figure.value


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
    known = {(row.arm, row.subject, row.metric): row.standing for row in published}
    found = ((row, known.get((row.arm, row.subject, row.metric))) for row in rows)
    return [row if standing is None else replace(row, standing=standing) for row, standing in found]


def agreement_rows(spec: FileSpec, rows: Sequence[Row], plans: Sequence[RunPlan]) -> Iterator[Row]:
    """Whether the run's figures are within a published range, each definition of a metric by itself.

    Of a published gain of GPU utilisation also from and to which share (0..1) of the time without computing
    must count for it.
    """
    for figure in spec.published:
        if figure.range is None:
            continue
        subject, tail = subject_of(figure, plans), "_ratio" if figure.over else ""
        for row in where(rows, arm=figure.arm, subject=subject, repeat=None):
            base = row.metric.removesuffix(tail)
            asked = base + tail == row.metric and selected([replace(row, metric=base)], figure.metric)
            if asked and is_number(row.value):
                least, most = (_in(row.unit, end) for end in figure.range)
                agrees = least <= row.value <= most
                yield replace(row, metric=f"{row.metric}_agrees", value=agrees, unit="", spread=None)
        if figure.metric == "gpu_utilisation" and figure.over:
            least, most = (_in("1", end) for end in figure.range)
            for after in where(rows, arm=figure.arm, subject=subject, metric=_COMPUTING, repeat=None):
                for before in where(rows, arm=figure.over, subject=subject, metric=_COMPUTING, repeat=None):
                    yield from _waiting(before, after, least, most)


def _waiting(before: Row, after: Row, least: float, most: float) -> Iterator[Row]:
    first, last = before.value, after.value
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
        yield replace(after, metric=f"waiting_counted_{word}", value=share, label="analytic", spread=None)
