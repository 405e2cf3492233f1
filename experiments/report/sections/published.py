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
from ringlight.experiments.analysis.published import means as published_means
from ringlight.experiments.analysis.rows import WORTH, Row, where
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import PublishedSpec
from ringlight.experiments.papers import paper
from ringlight.experiments.report.columns import short
from ringlight.experiments.report.page import (
    NOTHING,
    Columns,
    listing,
    mark,
    table_of,
    tag,
    text,
)
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import PUBLISHED, Draw, View
from ringlight.experiments.report.words import (
    as_text,
    called,
    figure,
    meaning,
    percent,
    upper_first,
)

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
    """Return HTML that shows a paper's verdict on the figures, by its own module, and whether its closed
    forms agree with the runs."""
    spec = view.experiment.spec.paper
    if spec is None or spec.model is None:
        return ""
    findings = paper(spec.model).verdict(view.base)
    points = [
        f"{mark(*_WORDS[finding.kind])} {text(finding.text)}" for finding in findings
    ]
    return f"<p>Written from the figures below.</p>{listing(points)}{_agreement(view)}"


def _agreement(view: View) -> str:
    """Return the largest difference between figures and their closed forms; empty without closed forms."""
    compared, worst, where = 0, 0.0, ""
    for form in (row for row in view.rows if row.metric.endswith(_CLOSED)):
        subject = view.figures_at(form.arm, form.subject, form.point)
        value = subject.value(form.metric.removesuffix(_CLOSED))
        if is_number(value) and is_number(form.value) and form.value:
            compared += 1
            if (off := abs(value / form.value - 1)) >= worst:
                worst, where = off, f"{subject.title}, {as_text(form.point)}"
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
    """Return HTML that shows published figures that are means over several points, each with all of our
    figures."""
    if not any(figure.at and figure.over for figure in view.experiment.spec.published):
        return ""
    published = list(published_means(view.experiment.spec, view.table))
    label = next((mean.ours[0][1].label for mean in published if mean.ours), view.label)
    columns: Columns[Mean] = [
        (
            "published",
            lambda mean: f"<b>{saved(mean.ratio):.2f} %</b> {tag(_worth(view, mean))}",
        ),
        ("what it is taken for", lambda mean: text(mean.spec.words or "")),
        (
            "",
            lambda mean: (
                mark("good", "reproduced")
                if mean.reproduced
                else mark("bad", "not reproduced")
            ),
        ),
        (f"closest of ours {tag(label)}", _closest),
        ("all of ours", _span),
    ]
    count = max((len(mean.ours) for mean in published), default=0)
    about = f"{text(published[0].spec.source or '')}. {text(view.says('means'))}"
    return (
        f"<p>{about} Each figure is the time that one saves, as a share of the other's time. Ours are means over "
        f"{text(_at(published[0].spec, '; '))}, for up to {count} combinations of the other swept values. "
        "<b>With so many, one may agree by chance: that does not reproduce the figure.</b></p>"
        f"{table_of(published, columns, 5)}"
    )


def _worth(view: View, mean: Mean) -> str:
    name = f"{name_of(mean.spec)}.{mean.spec.over}"
    rows = (
        row for row in view.table.each(mean.spec.arm, name) if row.label == PUBLISHED
    )
    return next((row.standing for row in rows), PUBLISHED)


def _at(spec: PublishedSpec, between: str = ", ") -> str:
    """Return the points for which a published figure is stated, in words."""
    return between.join(
        f"{short(p, spec.at)} {', '.join(map(as_text, values))}"
        for p, values in spec.at.items()
    )


def _closest(mean: Mean) -> str:
    if not mean.ours:
        return NOTHING
    ratio, row = mean.ours[0]
    rest = [
        f"{path.rpartition('.')[2]} {as_text(v)}"
        for path, v in row.point.items()
        if path not in mean.spec.at
    ]
    return f"{saved(ratio):.2f} %: {text(', '.join([called(mean.spec.metric), *rest]))}"


def _span(mean: Mean) -> str:
    savings = [saved(ratio) for ratio, _ in mean.ours]
    return f"{min(savings):,.1f} … {max(savings):.1f} %" if savings else NOTHING


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
        return (
            self.spec.value is not None
            and self.spec.value.unit == "%"
            and self.published.unit == "1"
        )

    def shown(self, row: Row | None) -> str:
        if row is None or not is_number(row.value):
            return NOTHING
        if not self.percent:
            return figure(row)
        share = 100 * row.value
        return (
            f"{share:.2f} %"
            if share >= 1
            else f"{share:.5f}".rstrip("0").rstrip(".") + " %"
        )

    @property
    def apart(self) -> str:
        if (
            self.ours is None
            or not is_number(self.ours.value)
            or not is_number(self.published.value)
        ):
            return NOTHING
        off = self.ours.value - self.published.value
        words = f"{100 * off:+.2f} points" if self.percent else f"{off:+.3g}"
        return words.replace("-", "\N{MINUS SIGN}")


@section(24, "Beside the published figures")
def beside(view: View, draw: Draw) -> str:
    """Return HTML that shows published figures of single points; ratios and means over many points have
    sections of their own."""
    figures = [
        _both(view, figure)
        for figure in view.experiment.spec.published
        if figure.at and figure.over is None
    ]
    columns: Columns[_Both] = [
        ("", lambda figure: text(figure.title)),
        ("at", lambda figure: text(_at(figure.spec))),
        ("published", lambda figure: figure.shown(figure.published)),
        ("ours", lambda figure: figure.shown(figure.ours)),
        ("apart", lambda figure: figure.apart),
        ("", lambda figure: tag(figure.ours.label) if figure.ours else ""),
        (
            "",
            lambda figure: (
                tag(figure.published.standing) if figure.ours else "not done here"
            ),
        ),
    ]

    def group(figure: _Both) -> str:
        words = f", published as “{figure.spec.words}”" if figure.spec.words else ""
        source = f" ({figure.spec.source})" if figure.spec.source else ""
        return f"{upper_first(meaning(figure.spec.metric))}{text(words)}{text(source)}"

    about = f"<p>The classes of evidence are explained further down.{view.says('beside')}</p>"
    return about + table_of(figures, columns, 2, group=group) if figures else ""


def _both(view: View, spec: PublishedSpec) -> _Both:
    subject, point = subject_of(spec, view.experiment.plans), mean_over(spec.at)
    rows = where(
        view.rows,
        arm=spec.arm,
        subject=subject,
        metric=mean_name(spec),
        point=point,
        repeat=None,
    )
    published = next(row for row in rows if row.label == PUBLISHED)
    ours = next((row for row in rows if row.label != PUBLISHED), None)
    return _Both(spec, view.title(spec.arm), published, ours)


@section(94, "Evidence of agreement with published figures")
def standing(view: View, draw: Draw) -> str:
    """Return HTML that shows what agreement with each published figure is worth, and why."""
    spec = view.experiment.spec
    columns: Columns[PublishedSpec] = [
        ("", lambda figure: text(_place(view, figure))),
        ("published", lambda figure: text(_value(figure))),
        ("standing", lambda figure: tag(standing_of(figure, spec))),
        ("why", lambda figure: text(_why(view, figure))),
    ]
    used = dict.fromkeys(standing_of(figure, spec) for figure in spec.published)
    words = "; ".join(
        f"<b>{standing}</b>: {text(WORTH[standing])}" for standing in used
    )
    shown = table_of(
        spec.published,
        columns,
        2,
        group=lambda figure: upper_first(meaning(figure.metric)),
    )
    return f"<p>{upper_first(words)}.</p>{shown}" if shown else ""


def _place(view: View, figure: PublishedSpec) -> str:
    over = f" over {view.title(figure.over)}" if figure.over else ""
    of = [
        f"{view.title(figure.arm)}{over}",
        f"job {figure.job}" if figure.job else "",
        _at(figure),
    ]
    return ", ".join(filter(None, of))


def _value(figure: PublishedSpec) -> str:
    ends = [figure.value] if figure.value is not None else list(figure.range or ())
    return " to ".join(
        f"{end.value:g} {end.unit}".removesuffix(" 1").rstrip() for end in ends
    )


def _why(view: View, figure: PublishedSpec) -> str:
    """Return the reason, and of a range the share of the run's own figures in it."""
    spec = view.experiment.spec
    if names := spec.fitted_by(figure):
        return f"From it follows {', '.join(names)}: {' '.join(spec.parameters[n].why for n in names)}"
    name = f"{name_of(figure)}_inside"
    values = (
        row.value for row in view.rows if (row.arm, row.metric) == (figure.arm, name)
    )
    share = next(filter(is_number, values), None)
    inside = "" if share is None else f" {percent(share, 0)} of our figures lie in it."
    return f"{figure.why or 'The file does not say.'}{inside}"
