"""What a paper's own module makes of the figures, and whether its closed forms agree with the runs."""

from __future__ import annotations

from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.papers import paper
from ringlight.experiments.report.page import listing, mark, tag, text
from ringlight.experiments.report.view import Draw, View
from ringlight.experiments.report.words import said

ORDER = 1
TITLE = "Verdict"
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


def wanted(view: View) -> bool:
    spec = view.experiment.spec.paper
    return spec is not None and spec.model is not None


def render(view: View, draw: Draw) -> str:
    spec = view.experiment.spec.paper
    assert spec is not None
    found = paper(spec.model or "").verdict(view.base)
    points = [f"{mark(*_WORDS[one.kind])} {text(one.text)}" for one in found]
    return f"<p>Written from the figures below.</p>{listing(points)}{_agreement(view)}"


def _agreement(view: View) -> str:
    """How far figures are from their closed forms, where there are any."""
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
