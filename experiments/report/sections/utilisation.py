"""GPU utilisation, by definition: which of them agree with what is published."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.analysis.metrics.utilisation import WINDOW
from experiments.analysis.statistics import is_number
from experiments.report.page import row, table, tag, text
from experiments.report.report import Draw
from experiments.report.view import Compared, View
from experiments.report.words import figure, percent, worth_tag
from fabric.utilisation import DEFINITIONS, Definition

ORDER = 40
NEEDS = ("gpu_utilisation_ratio",)
UTILISATION = "gpu_utilisation"
#: A comparison and the job that it is of.
Claim = tuple[Compared, str]


def wanted(view: View) -> bool:
    return bool(_claims(view))


def _claims(view: View) -> list[Claim]:
    return [
        (one, subject)
        for spec in view.experiment.spec.compare
        if UTILISATION in spec.metrics
        for one in view.compared(spec)
        if one.arm in view.fixed
        for subject in view.compared_subjects(one)
        if subject.startswith("job ")
    ]


def render(view: View, draw: Draw) -> str:
    claims = _claims(view)
    head = ["what counts as busy", *(f"{text(_title(view, claim))} {tag(view.label)}" for claim in claims)]
    rows = [
        row([f"{text(d.title)}<br><small>{text(d.why)}</small>", *_cells(view, claims, name)], 1)
        for name, d in DEFINITIONS.items()
    ]
    published = [_published(view, claim) for claim in claims]
    if any(published):
        rows.append(row([f"paper {tag('published')}", *(cell or "–" for cell in published)], 1, "strong"))
    said = f" {text(view.says('utilisation'))}" if view.says("utilisation") else ""
    return (
        "<h2>GPU utilisation, by definition</h2><p>A counter shows in how much of the time a kernel was "
        "executing; how much of a collective that is depends on how the collective is made. So here are "
        f"several definitions, each from the same runs.{said}</p>{_quoted(view, claims)}"
        f"{table(head, rows, 1)}{_agreement(view, claims)}"
    )


def _title(view: View, claim: Claim) -> str:
    one, subject = claim
    return f"{one.spec.title or view.title(one.arm)}, {subject}"


def _cells(view: View, claims: list[Claim], name: str) -> Iterator[str]:
    metric = f"{UTILISATION}.{name}"
    for one, subject in claims:
        ratio = view.of_comparison(one, subject, f"{metric}_ratio")
        if ratio is None or not is_number(ratio.value):
            yield "–"
            continue
        if name == WINDOW:
            found = [
                view.of_comparison(one, subject, f"{metric}_baseline"),
                view.of_comparison(one, subject, metric),
            ]
        else:
            found = [
                view.row(one.spec.baseline, subject, metric, view.baseline_point(one)),
                view.row(one.arm, subject, metric, one.point),
            ]
        before, after = (f.value if f is not None and is_number(f.value) else None for f in found)
        gain = f"{ratio.value:.2f} ×"
        agrees = _agrees(view, one, subject, name)
        if agrees is not None:
            gain = f'<b class="{"good" if agrees else "bad"}">{gain}</b>'
        supposed = f" {tag('analytic')}" if ratio.label == "analytic" else ""
        yield f"{percent(before, 0)} → {percent(after, 0)}, {gain}{supposed}"


def _agrees(view: View, one: Compared, subject: str, name: str) -> bool | None:
    found = view.of_comparison(one, subject, f"{UTILISATION}.{name}_ratio_agrees")
    return found.value if found is not None and isinstance(found.value, bool) else None


def _published(view: View, claim: Claim) -> str:
    one, subject = claim
    ends = [view.published(one.arm, subject, f"{UTILISATION}_ratio_{end}") for end in ("from", "to")]
    if not all(ends):
        return ""
    return f"{' to '.join(figure(end) for end in ends)} × {worth_tag(ends[0])}"


def _quoted(view: View, claims: list[Claim]) -> str:
    arms = {one.arm: _title(view, (one, subject)) for one, subject in claims}
    said = [
        f"{text(arms[figure.arm])}: “{text(figure.words)}”"
        for figure in view.experiment.spec.published
        if figure.words is not None and figure.metric == UTILISATION and figure.arm in arms
    ]
    if not said:
        return ""
    return (
        "<p>Published, read as the ranges in the last row, where predicted says that no parameter was fitted "
        f"to it: {'; '.join(said)}.</p>"
    )


def _listed(found: list[Definition]) -> str:
    return " and ".join(f"“{text(definition.title)}”" for definition in found) or "none"


def _agreement(view: View, claims: list[Claim]) -> str:
    """Which definitions agree with all that is published, and how much waiting would have to count."""
    of_claim = {
        _title(view, claim): [d for name, d in DEFINITIONS.items() if _agrees(view, *claim, name)]
        for claim in claims
        if _published(view, claim)
    }
    if not of_claim:
        return ""
    in_all = [d for d in DEFINITIONS.values() if all(d in found for found in of_claim.values())]
    if in_all:
        said = f"Consistent with all that is published: {_listed(in_all)}."
    else:
        each = "; ".join(f"{text(title)} agrees with {_listed(found)}" for title, found in of_claim.items())
        said = f"<b>No definition is consistent with all that is published</b>: {each}."
    shares = []
    for one, subject in claims:
        ends = [view.number(one.arm, subject, f"waiting_counted_{end}", one.point) for end in ("from", "to")]
        if all(end is not None for end in ends):
            shares.append(f"{' to '.join(percent(end, 0) for end in ends)} for {text(view.title(one.arm))}")
    counted = (
        f" Of the time without computing, a counter would have to count {', '.join(shares)} "
        f"{tag('analytic')}."
        if shares
        else ""
    )
    return (
        f"<p>{said}{counted} A definition that counts the same work in every iteration gives the speed-up "
        "itself, whatever overlaps and however unequal the GPUs are; one that counts all waiting gives 1.</p>"
    )
