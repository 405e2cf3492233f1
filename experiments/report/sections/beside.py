"""Published figures of single points of a sweep, each beside the run's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringlight.experiments.analysis.published import mean_name, mean_over, subject_of
from ringlight.experiments.analysis.rows import Row, where
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import PublishedSpec
from ringlight.experiments.report.page import NOTHING, Columns, table_of, tag, text
from ringlight.experiments.report.view import Draw, View, short
from ringlight.experiments.report.words import figure, meaning, said, upper_first

ORDER = 24
TITLE = "Beside the published figures"


@dataclass(frozen=True)
class _Both:
    """A published figure, and the run's own where there is one."""

    spec: PublishedSpec
    title: str
    published: Row
    ours: Row | None

    @property
    def percent(self) -> bool:
        """Whether it is published in per cent, though its metric is a share."""
        return self.spec.value is not None and self.spec.value.unit == "%" and self.published.unit == "1"

    def shown(self, row: Row | None) -> str:
        if row is None or not is_number(row.value):
            return NOTHING
        if not self.percent:
            return figure(row)
        share = 100 * row.value
        return f"{share:.2f} %" if share >= 1 else f"{share:.5f}".rstrip("0").rstrip(".") + " %"

    @property
    def apart(self) -> str:
        if self.ours is None or not is_number(self.ours.value) or not is_number(self.published.value):
            return NOTHING
        off = self.ours.value - self.published.value
        said = f"{100 * off:+.2f} points" if self.percent else f"{off:+.3g}"
        return said.replace("-", "\N{MINUS SIGN}")


def wanted(view: View) -> Sequence[PublishedSpec]:
    """Published figures of single points; ratios and means over many have sections of their own."""
    return [one for one in view.experiment.spec.published if one.at and one.over is None]


def render(view: View, draw: Draw) -> str:
    found = [_both(view, spec) for spec in wanted(view)]
    columns: Columns[_Both] = [
        ("", lambda one: text(one.title)),
        ("at", lambda one: text(_point(one.spec))),
        ("published", lambda one: one.shown(one.published)),
        ("ours", lambda one: one.shown(one.ours)),
        ("apart", lambda one: one.apart),
        ("", lambda one: tag(one.ours.label) if one.ours else ""),
        ("", lambda one: tag(one.published.standing) if one.ours else "not done here"),
    ]

    def group(one: _Both) -> str:
        words = f", published as “{one.spec.words}”" if one.spec.words else ""
        source = f" ({one.spec.source})" if one.spec.source else ""
        return f"{upper_first(meaning(one.spec.metric))}{text(words)}{text(source)}"

    about = f"<p>What a standing is worth is explained further down.{view.says('beside')}</p>"
    return about + table_of(found, columns, 2, group=group)


def _point(spec: PublishedSpec) -> str:
    ends = [f"{short(path, spec.at)} {', '.join(map(said, values))}" for path, values in spec.at.items()]
    return ", ".join(ends)


def _both(view: View, spec: PublishedSpec) -> _Both:
    rows = where(
        view.rows,
        arm=spec.arm,
        subject=subject_of(spec, view.experiment.plans),
        metric=mean_name(spec),
        point=mean_over(spec.at),
        repeat=None,
    )
    published = next(row for row in rows if row.label == "published")
    ours = next((row for row in rows if row.label != "published"), None)
    return _Both(spec, view.title(spec.arm), published, ours)
