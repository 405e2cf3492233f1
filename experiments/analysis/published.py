"""A paper's figures beside the run's: what they are, and what agreement with them is worth."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringlight.experiments.analysis.metrics import metrics
from ringlight.experiments.analysis.rows import Row, Standing, defines, key_of, where
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.analysis.table import Table
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.language.spec import Figure, FileSpec, PublishedSpec
from ringlight.fabric.utilisation import waiting_counted

#: Utilisation from which others follow: only computing counts.
_COMPUTING = "gpu_utilisation.compute"


def published_rows(spec: FileSpec, plans: Sequence[RunPlan]) -> list[Row]:
    """Return the figures that a file gives as published, in their metrics' units; for a range two rows,
    its ends."""
    made = []
    for figure in spec.published:
        known = metrics().get(figure.metric)
        name, unit = (
            name_of(figure),
            "1" if figure.over or known is None else known.unit,
        )
        standing = standing_of(figure, spec)
        row = Row(
            figure.arm,
            subject_of(figure, plans),
            name,
            None,
            unit,
            "published",
            standing=standing,
        )
        if figure.at:
            row = replace(row, metric=mean_name(figure), point=mean_over(figure.at))
        if figure.value is not None:
            made.append(replace(row, value=_in(unit, figure.value)))
        for end, word in zip(figure.range or (), ("from", "to"), strict=False):
            made.append(replace(row, metric=f"{name}_{word}", value=_in(unit, end)))
    return made


def standing_of(figure: PublishedSpec, spec: FileSpec) -> Standing:
    """Return the standing of a published figure: what agreement with it is worth."""
    return "fitted" if spec.fitted_by(figure) else figure.standing or "unjudged"


def _in(unit: str, figure: Figure) -> float:
    """Return the published value in the metric's unit; a share may be published in per cent."""
    return figure.value / 100 if figure.unit == "%" and unit == "1" else figure.value


def mean_name(figure: PublishedSpec) -> str:
    """Return the name of the metric that is a published figure's mean over points."""
    return f"{name_of(figure)}.{figure.over or 'mean'}"


def mean_over(values_by_path: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Return the point of a row that is a mean over several points, by swept path."""
    return {
        path: "mean of " + ", ".join(map(str, values))
        for path, values in values_by_path.items()
    }


def mean_rows(spec: FileSpec, table: Table, plans: Sequence[RunPlan]) -> Iterator[Row]:
    """Yield the run's counterpart of each published mean over points: a row for each combination of other
    swept values.

    The row is a ratio to the other arm if the figure names one.
    """
    for figure in spec.published:
        if not figure.at:
            continue
        subject = subject_of(figure, plans)
        if figure.over is None:
            yield from _mean_of_one(figure, subject, table)
            continue
        mine, theirs = (
            [
                row
                for arm_point in table.of(arm)
                if (row := arm_point.row(subject, figure.metric)) is not None
            ]
            for arm in (figure.arm, figure.over)
        )
        columns = list(zip(*figure.at.values(), strict=True))
        beside = list(zip(*(figure.over_at or figure.at).values(), strict=True))
        ratios: dict[str, list[tuple[Row, float]]] = {}
        for row in mine:
            place = tuple(row.point.get(path) for path in figure.at)
            if place not in columns:
                continue
            rest = {
                path: value
                for path, value in row.point.items()
                if path not in figure.at
            }
            there = dict(
                zip(
                    figure.over_at or figure.at,
                    beside[columns.index(place)],
                    strict=True,
                )
            )
            for other in theirs:
                own = {
                    path: value
                    for path, value in other.point.items()
                    if path not in there
                }
                if not there.items() <= other.point.items() or not _same(
                    rest, own, figure.over_at
                ):
                    continue
                if is_number(row.value) and is_number(other.value) and other.value:
                    key = key_of({**own, **rest})
                    point = {**own, **rest, **mean_over(figure.at)}
                    ratios.setdefault(key, []).append(
                        (replace(row, point=point), row.value / other.value)
                    )
        for pairs in ratios.values():
            if len(pairs) == len(columns):
                mean = statistics.fmean(ratio for _, ratio in pairs)
                yield replace(
                    pairs[0][0],
                    metric=mean_name(figure),
                    value=mean,
                    unit="1",
                    spread=None,
                )


def _mean_of_one(figure: PublishedSpec, subject: str, table: Table) -> Iterator[Row]:
    """Yield the mean of an arm's own figure over points, if it has all of them and nothing else is swept."""
    points = [
        dict(zip(figure.at, place, strict=True))
        for place in zip(*figure.at.values(), strict=True)
    ]
    figures = [
        row
        for arm_point in table.of(figure.arm)
        if arm_point.point in points
        and (row := arm_point.row(subject, figure.metric)) is not None
    ]
    values = [row.value for row in figures if is_number(row.value)]
    if len(values) == len(points):
        mean = values[0] if len(values) == 1 else statistics.fmean(values)
        yield replace(
            figures[0],
            metric=mean_name(figure),
            point=mean_over(figure.at),
            value=mean,
            spread=None,
        )


@dataclass(frozen=True)
class Mean:
    """A published ratio that is a mean over points, and the run's own with their rows, the closest first."""

    spec: PublishedSpec
    ratio: float
    ours: Sequence[tuple[float, Row]]

    @property
    def reproduced(self) -> bool:
        """True if one of our ratios equals the published ratio to the printed digits."""
        return any(
            f"{saved(ratio):.2f}" == f"{saved(self.ratio):.2f}"
            for ratio, _ in self.ours
        )


def means(spec: FileSpec, table: Table) -> Iterator[Mean]:
    """Yield each published mean with the rows that :func:`mean_rows` made of the run's rows."""
    for figure in spec.published:
        if not figure.at or figure.over is None or figure.value is None:
            continue
        name, ratio = f"{name_of(figure)}.{figure.over}", _in("1", figure.value)
        rows = (row for row in table.each(figure.arm, name) if row.label != "published")
        mine = [(row.value, row) for row in rows if is_number(row.value)]
        yield Mean(figure, ratio, sorted(mine, key=lambda pair: abs(pair[0] - ratio)))


def saved(ratio: float) -> float:
    """Return the per cent that an arm with this ratio to another arm saves."""
    return 100 * (1 - ratio)


def _same(
    mine: Mapping[str, Any], other: Mapping[str, Any], apart: Collection[str]
) -> bool:
    """Return whether two points agree; with fabrics ``apart``, without paths of fabrics that only one
    point has."""
    if not apart:
        return mine == other
    return all(
        mine.get(path) == other.get(path)
        for path in mine.keys() | other.keys()
        if not path.startswith("fabrics.") or path in mine.keys() & other.keys()
    )


def name_of(figure: PublishedSpec) -> str:
    """Return the name of a published figure's metric; the name of the ratio if the figure is over another
    arm's."""
    return f"{figure.metric}_ratio" if figure.over else figure.metric


def subject_of(figure: PublishedSpec, plans: Sequence[RunPlan]) -> str:
    """Return the subject of a published figure: its job (by default the first of the plan), the fabric or
    the run."""
    plan = next(plan for plan in plans if plan.arm == figure.arm)
    known = metrics().get(figure.metric)
    if figure.job is not None or known is None or known.of == "job":
        return f"job {figure.job or plan.jobs[0].name}"
    return f"fabric {plan.setting.name}" if known.of == "fabric" else "run"


def standings(rows: Iterable[Row], published: Sequence[Row]) -> list[Row]:
    """Return the run's rows; each row that has a published counterpart with the standing of the published
    figure."""
    known = {
        (row.arm, row.subject, row.metric.removesuffix("_from")): row.standing
        for row in published
    }
    rows_with_standing = (
        (row, known.get((row.arm, row.subject, row.metric))) for row in rows
    )
    return [
        row if standing is None else replace(row, standing=standing)
        for row, standing in rows_with_standing
    ]


def agreement_rows(
    spec: FileSpec, rows: Sequence[Row], plans: Sequence[RunPlan]
) -> Iterator[Row]:
    """Yield whether the run's figures are within a published range, each definition of a metric by itself.

    With the standing ``range`` also yield the share (0..1) of definitions within it. For a published gain of
    GPU utilisation also yield the least and greatest share (0..1) of the time without computing that must
    count for it.
    """
    for figure in spec.published:
        if figure.range is None:
            continue
        subject, tail = subject_of(figure, plans), "_ratio" if figure.over else ""
        inside: list[Row] = []
        for row in where(rows, arm=figure.arm, subject=subject, repeat=None):
            base = row.metric.removesuffix(tail)
            if (
                base + tail == row.metric
                and defines(base, figure.metric)
                and is_number(row.value)
            ):
                least, most = (_in(row.unit, end) for end in figure.range)
                agrees = least <= row.value <= most
                inside.append(
                    replace(
                        row,
                        metric=f"{row.metric}_agrees",
                        value=agrees,
                        unit="",
                        spread=None,
                    )
                )
        yield from inside
        if inside and figure.standing == "range":
            share = statistics.fmean(bool(row.value) for row in inside)
            everywhere = {path: "all" for row in inside for path in row.point}
            yield replace(
                inside[0],
                metric=f"{name_of(figure)}_inside",
                point=everywhere,
                value=share,
                unit="1",
            )
        if figure.metric == "gpu_utilisation" and figure.over:
            least, most = (_in("1", end) for end in figure.range)
            for after in where(
                rows, arm=figure.arm, subject=subject, metric=_COMPUTING, repeat=None
            ):
                for before in where(
                    rows,
                    arm=figure.over,
                    subject=subject,
                    metric=_COMPUTING,
                    repeat=None,
                ):
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
        yield replace(
            after,
            metric=f"waiting_counted_{word}",
            value=share,
            label="analytic",
            spread=None,
        )
