"""GPU utilisation, by definition: which of them agree with what is published."""

from __future__ import annotations

from collections.abc import Sequence

from ringlight.experiments.analysis.compare import UTILISATION
from ringlight.experiments.analysis.metrics.utilisation import WINDOW
from ringlight.experiments.report.page import NOTHING, folded, mark, row, table, tag, text
from ringlight.experiments.report.view import PUBLISHED, Compared, Draw, View
from ringlight.experiments.report.words import figure, percent, worth_tag
from ringlight.fabric.utilisation import DEFINITIONS, Definition

ORDER = 26
TITLE = "GPU utilisation, by definition"
NEEDS = (f"{UTILISATION}_ratio",)


def wanted(view: View) -> Sequence[Compared]:
    """Comparisons of jobs."""
    return [
        one
        for one in view.comparisons
        if UTILISATION in one.spec.metrics and one.arm in view.fixed and one.subject.startswith("job ")
    ]


def render(view: View, draw: Draw) -> str:
    claims = wanted(view)
    head = ["what counts as busy", *(f"{text(_title(one))} {tag(view.label)}" for one in claims)]
    rows = [
        row([f"{text(d.title)}<br><small>{text(d.why)}</small>", *(_cell(one, name) for one in claims)], 1)
        for name, d in DEFINITIONS.items()
    ]
    published = [_published(one) for one in claims]
    if any(published):
        cells = (cell or NOTHING for cell in published)
        rows.append(row([f"paper {tag(PUBLISHED)}", *cells], 1, "strong"))
    return (
        "<p>A counter shows in how much of the time a kernel was executing; how much of a collective that is "
        "depends on how the collective is made. So here are several definitions, each from the same runs."
        f"{view.says('utilisation')}</p>{_quoted(view, claims)}{_agreement(claims)}"
        + folded(f"All {len(DEFINITIONS)} definitions", table(head, rows, 1))
    )


def _title(one: Compared) -> str:
    return f"{one.spec.title or one.title}, {one.subject}"


def _cell(one: Compared, name: str) -> str:
    metric = f"{UTILISATION}.{name}"
    ratio, known = one.ratio(metric), one.row(f"{metric}_ratio")
    if ratio is None or known is None:
        return NOTHING
    before = one.number(f"{metric}_baseline") if name == WINDOW else one.base.number(metric)
    agrees, gain = _agrees(one, name), f"{ratio:.2f} ×"
    if agrees is not None:
        gain = mark("good" if agrees else "bad", gain)
    supposed = f" {tag('analytic')}" if known.label == "analytic" else ""
    return f"{percent(before, 0)} → {percent(one.number(metric), 0)}, {gain}{supposed}"


def _agrees(one: Compared, name: str) -> bool | None:
    return one.truth(f"{UTILISATION}.{name}_ratio_agrees")


def _published(one: Compared) -> str:
    ends = [one.row(f"{UTILISATION}_ratio_{end}", PUBLISHED) for end in ("from", "to")]
    return f"{' to '.join(map(figure, ends))} × {worth_tag(ends[0])}" if all(ends) else ""


def _quoted(view: View, claims: Sequence[Compared]) -> str:
    arms = {one.arm: _title(one) for one in claims}
    said = [
        f"{text(arms[figure.arm])}: “{text(figure.words)}”"
        for figure in view.experiment.spec.published
        if figure.words is not None and figure.metric == UTILISATION and figure.arm in arms
    ]
    if not said:
        return ""
    return f"<p>Published, read as the ranges in the last row: {'; '.join(said)}.</p>"


def _listed(found: Sequence[Definition]) -> str:
    return " and ".join(f"“{text(definition.title)}”" for definition in found) or "none"


def _agreement(claims: Sequence[Compared]) -> str:
    """Which definitions agree with all that is published, and how much waiting would have to count."""
    of_claim = {
        _title(one): [d for name, d in DEFINITIONS.items() if _agrees(one, name)]
        for one in claims
        if _published(one)
    }
    if not of_claim:
        return ""
    in_all = [d for d in DEFINITIONS.values() if all(d in found for found in of_claim.values())]
    if in_all:
        said = f"Consistent with all that is published: {_listed(in_all)}."
    else:
        each = "; ".join(f"{text(title)} agrees with {_listed(found)}" for title, found in of_claim.items())
        said = f"<b>No definition is consistent with all that is published</b>: {each}."
    ends = [(one, one.numbers("waiting_counted_from", "waiting_counted_to")) for one in claims]
    shares = [
        f"{' to '.join(percent(end, 0) for end in both)} for {text(one.title)}"
        for one, both in ends
        if None not in both
    ]
    if shares:
        said += f" Of the time without computing, a counter would have to count {', '.join(shares)} "
        said += f"{tag('analytic')}."
    return (
        f"<p>{said} A definition that counts the same work in every iteration gives the speed-up itself, "
        "whatever overlaps and however unequal the GPUs are; one that counts all waiting gives 1.</p>"
    )
