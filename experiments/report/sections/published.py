"""Compare papers with the run: their verdict, their figures, and what agreement is worth."""

from __future__ import annotations

from dataclasses import dataclass

from ringlight.experiments.analysis.published import (
    Mean,
    mean_name,
    mean_over,
    name_of,
    saved,
    standing_of,
    subject_of,
)
from ringlight.experiments.analysis.published import (
    means as published_means,
)
from ringlight.experiments.analysis.rows import WORTH, Row, where
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import PublishedSpec
from ringlight.experiments.papers import paper
from ringlight.experiments.report.page import NOTHING, Columns, listing, mark, table_of, tag, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import PUBLISHED, Draw, View, short
from ringlight.experiments.report.words import called, figure, meaning, percent, said, upper_first

_WORDS = {
    "wins": ("good", "Wins."),
    "loses": ("bad", "Loses."),
    "note": ("quiet", "Published."),
    "free": ("quiet", "Free."),
}
#: What ends in this is a closed form of what is called as it is without.
_CLOSED = "_closed"
#: So far apart they do not agree.
_APART = 1e-6


@section(1, "Verdict")
def verdict(view: View, draw: Draw) -> str:
    """Return a paper's verdict on the figures, by its own module, and whether its closed forms agree with
    the runs."""
    spec = view.experiment.spec.paper
    if spec is None or spec.model is None:
        return ""
    found = paper(spec.model).verdict(view.base)
    points = [f"{mark(*_WORDS[one.kind])} {text(one.text)}" for one in found]
    return f"<p>Written from the figures below.</p>{listing(points)}{_agreement(view)}"


def _agreement(view: View) -> str:
    """Return the largest difference between figures and their closed forms; empty without closed forms."""
    compared, worst, where = 0, 0.0, ""
    for form in (row for row in view.rows if row.metric.endswith(_CLOSED)):
        at = view.at(form.arm, form.subject, form.point)
        found = at.value(form.metric.removesuffix(_CLOSED))
        if is_number(found) and is_number(form.value) and form.value:
            compared += 1
            if (off := abs(found / form.value - 1)) >= worst:
                worst, where = off, f"{at.title}, {said(form.point)}"
    if not compared:
        return ""
    if worst > _APART:
        words = f"{mark('bad', 'Runs and closed forms disagree')} by {worst:.1e} ({text(where)})."
        return f'<div class="verdict bad">{words} <span>Do not believe this page.</span></div>'
    return (
        f'<div class="verdict good">{mark("good", "Runs and closed forms agree.")} <span>Largest relative '
        f"difference over {compared:,} figures: {worst:.1e} {tag('analytic')}.</span></div>"
    )


@section(23, "The published percentages")
def means(view: View, draw: Draw) -> str:
    """Return published figures that are means over several points, with every one of our figures for it."""
    if not any(figure.at and figure.over for figure in view.experiment.spec.published):
        return ""
    found = list(published_means(view.experiment.spec, view.table))
    label = next((one.ours[0][1].label for one in found if one.ours), view.label)
    columns: Columns[Mean] = [
        ("published", lambda one: f"<b>{saved(one.ratio):.2f} %</b> {tag(_worth(view, one))}"),
        ("what it is taken for", lambda one: text(one.spec.words or "")),
        ("", lambda one: mark("good", "reproduced") if one.reproduced else mark("bad", "not reproduced")),
        (f"closest of ours {tag(label)}", _closest),
        ("all of ours", _span),
    ]
    count = max((len(one.ours) for one in found), default=0)
    about = f"{text(found[0].spec.source or '')}. {text(view.says('means'))}"
    return (
        f"<p>{about} Each is what one takes less than the other. Ours are means over "
        f"{text(_at(found[0].spec, '; '))}, for up to {count} combinations of what else is swept. <b>With so "
        f"many, one may come near by chance: near is not reproduced.</b></p>{table_of(found, columns, 5)}"
    )


def _worth(view: View, one: Mean) -> str:
    name = f"{name_of(one.spec)}.{one.spec.over}"
    rows = (row for row in view.table.each(one.spec.arm, name) if row.label == PUBLISHED)
    return next((row.standing for row in rows), PUBLISHED)


def _at(spec: PublishedSpec, between: str = ", ") -> str:
    """Points that a published figure is stated for, in words."""
    return between.join(
        f"{short(p, spec.at)} {', '.join(map(said, values))}" for p, values in spec.at.items()
    )


def _closest(one: Mean) -> str:
    if not one.ours:
        return NOTHING
    ratio, row = one.ours[0]
    rest = [
        f"{path.rpartition('.')[2]} {said(v)}" for path, v in row.point.items() if path not in one.spec.at
    ]
    return f"{saved(ratio):.2f} %: {text(', '.join([called(one.spec.metric), *rest]))}"


def _span(one: Mean) -> str:
    found = [saved(ratio) for ratio, _ in one.ours]
    return f"{min(found):,.1f} … {max(found):.1f} %" if found else NOTHING


@dataclass(frozen=True)
class _Both:
    """A published figure, and the run's own where there is one."""

    spec: PublishedSpec
    title: str
    published: Row
    ours: Row | None

    @property
    def percent(self) -> bool:
        """True if the figure is published in per cent, though its metric is a share."""
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


@section(24, "Beside the published figures")
def beside(view: View, draw: Draw) -> str:
    """Return published figures of single points; ratios and means over many points have sections of their
    own."""
    found = [_both(view, one) for one in view.experiment.spec.published if one.at and one.over is None]
    columns: Columns[_Both] = [
        ("", lambda one: text(one.title)),
        ("at", lambda one: text(_at(one.spec))),
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
    return about + table_of(found, columns, 2, group=group) if found else ""


def _both(view: View, spec: PublishedSpec) -> _Both:
    subject, point = subject_of(spec, view.experiment.plans), mean_over(spec.at)
    rows = where(view.rows, arm=spec.arm, subject=subject, metric=mean_name(spec), point=point, repeat=None)
    published = next(row for row in rows if row.label == PUBLISHED)
    ours = next((row for row in rows if row.label != PUBLISHED), None)
    return _Both(spec, view.title(spec.arm), published, ours)


@section(94, "What agreement with published figures is worth")
def standing(view: View, draw: Draw) -> str:
    """Return what agreement with each published figure is worth, and why."""
    spec = view.experiment.spec
    columns: Columns[PublishedSpec] = [
        ("", lambda one: text(_place(view, one))),
        ("published", lambda one: text(_value(one))),
        ("standing", lambda one: tag(standing_of(one, spec))),
        ("why", lambda one: text(_why(view, one))),
    ]
    used = dict.fromkeys(standing_of(one, spec) for one in spec.published)
    words = "; ".join(f"<b>{standing}</b>: {text(WORTH[standing])}" for standing in used)
    shown = table_of(spec.published, columns, 2, group=lambda one: upper_first(meaning(one.metric)))
    return f"<p>{upper_first(words)}.</p>{shown}" if shown else ""


def _place(view: View, one: PublishedSpec) -> str:
    over = f" over {view.title(one.over)}" if one.over else ""
    of = [f"{view.title(one.arm)}{over}", f"job {one.job}" if one.job else "", _at(one)]
    return ", ".join(filter(None, of))


def _value(one: PublishedSpec) -> str:
    ends = [one.value] if one.value is not None else list(one.range or ())
    return " to ".join(f"{end.value:g} {end.unit}".removesuffix(" 1").rstrip() for end in ends)


def _why(view: View, one: PublishedSpec) -> str:
    """The reason, and of a range the share of the run's own figures that lie in it."""
    spec = view.experiment.spec
    if names := spec.fitted_by(one):
        return f"From it follows {', '.join(names)}: {' '.join(spec.parameters[n].why for n in names)}"
    name = f"{name_of(one)}_inside"
    found = (row.value for row in view.rows if (row.arm, row.metric) == (one.arm, name))
    share = next(filter(is_number, found), None)
    inside = "" if share is None else f" {percent(share, 0)} of our figures lie in it."
    return f"{one.why or 'The file does not say.'}{inside}"
