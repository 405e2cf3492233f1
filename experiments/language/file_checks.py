"""Check what spans sections of a scenario file: comparisons, published figures, charts and their runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ringlight.experiments.language.model_keys import references
from ringlight.experiments.language.paths import check_known, like
from ringlight.experiments.language.spec import FileSpec, PublishedSpec, SweepSpec


def check_file(
    spec: FileSpec,
    arms: Sequence[str],
    jobs: Mapping[str, Collection[str]],
    metrics: Mapping[str, str] | None,
    parts: Callable[[], Collection[str]] | None,
) -> None:
    """Check the parts of a file that are the same for all runs. Raises ValueError, ``key: what is wrong``.

    ``jobs``: by arm. ``metrics``: of results, with their units, None if unknown. ``parts``: returns those of
    a report, None if unknown.
    """
    known: dict[str, Collection[str]] = {
        "arm": arms,
        "swept path": [path for sweep in spec.sweep for path in sweep.over],
    }
    if metrics is not None:
        if spec.search is not None:
            check_known("search.metric", "metric", spec.search.metric, metrics)
            metrics = {**metrics, spec.search.made[0]: metrics[spec.search.metric]}
        known["metric"] = metrics
    for where, what, name in references(spec):
        if what in known:
            check_known(where, what, name, known[what])
    for index, compare in enumerate(spec.compare):
        for arm in (
            () if compare.job is None else (compare.baseline, *(compare.arms or ()))
        ):
            if compare.job not in jobs[arm]:
                raise ValueError(
                    f"compare[{index}].job: arm {arm} has no job {compare.job}"
                )
    if spec.published and spec.paper is None:
        raise ValueError("published: of which paper? The section paper is missing")
    for index, figure in enumerate(spec.published):
        where = f"published[{index}]"
        if figure.job is not None and figure.job not in jobs[figure.arm]:
            raise ValueError(f"{where}.job: arm {figure.arm} has no job {figure.job}")
        unit = "1" if figure.over is not None else (metrics or {}).get(figure.metric)
        for key, stated in (
            ("value", figure.value),
            *(("range", bound) for bound in figure.range or ()),
        ):
            # A share may be written in per cent.
            if stated is not None and unit not in (
                None,
                {"%": "1"}.get(stated.unit, stated.unit),
                stated.unit,
            ):
                raise ValueError(
                    f"{where}.{key}: {figure.metric} is in {unit}, this in {stated.unit}"
                )
        _check_means(where, figure, spec)
        # One from which a parameter was derived cannot be a prediction, an identity or a range.
        for name in (
            spec.fitted_by(figure) if figure.standing not in (None, "free") else ()
        ):
            raise ValueError(
                f"{where}.standing: it is fitted, as parameters.{name}.fitted_to names it"
            )
    published = [f"{figure.arm}.{figure.metric}" for figure in spec.published]
    for name, parameter in spec.parameters.items():
        for key in parameter.fitted_to:
            if key not in published:
                near = like(key, published)
                raise ValueError(
                    f"parameters.{name}.fitted_to: there is no published figure {key}"
                    f"{f'; the nearest is {near}' if near else ''}"
                )
    for index, sweep in enumerate(spec.sweep):
        if sweep.metrics and sweep.title is None:
            raise ValueError(
                f"sweep[{index}].metrics: they are of pictures, which only one with a title has"
            )
    if spec.paper is not None and spec.paper.says and parts is not None:
        there = parts()
        for part in spec.paper.says:
            if part not in there:
                reason = f"the page has no such part; there are {', '.join(there)}"
                raise ValueError(f"paper.says.{part}: {reason}")


def _check_means(where: str, figure: PublishedSpec, spec: FileSpec) -> None:
    """The points that a published figure is a mean over."""
    if figure.over_at and figure.over is None:
        raise ValueError(f"{where}.over_at: it goes with over, which is missing")
    if figure.over_at and not figure.at:
        raise ValueError(f"{where}.over_at: it goes with at, which is missing")
    counts = {len(values) for values in (*figure.at.values(), *figure.over_at.values())}
    if len(counts) > 1:
        raise ValueError(
            f"{where}.at: its lists are of different lengths; each place is one point"
        )
    if figure.at and figure.over is None:
        for place in zip(*figure.at.values(), strict=True):
            point = dict(zip(figure.at, place, strict=True))
            if not any(_has_point(sweep, figure.arm, point) for sweep in spec.sweep):
                point_text = ", ".join(
                    f"{path} {value}" for path, value in point.items()
                )
                raise ValueError(
                    f"{where}.at: arm {figure.arm} is at no point of a sweep with {point_text}"
                )


def _has_point(sweep: SweepSpec, arm: str, point: Mapping[str, Any]) -> bool:
    """Return whether a sweep takes an arm to exactly this point."""
    mine = sweep.arms is None or arm in sweep.arms
    return (
        mine
        and point.keys() == sweep.over.keys()
        and all(v in sweep.over[k] for k, v in point.items())
    )
