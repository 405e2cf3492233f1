"""Arms against a baseline: each metric with its ratio, and GPU utilisation by its definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ringlight.experiments.analysis.compare import UTILISATION
from ringlight.experiments.analysis.metrics.utilisation import WINDOW
from ringlight.experiments.analysis.rows import WORTH, Row
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.report.page import NOTHING, folded, mark, quiet, row, table, table_of, tag, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import PUBLISHED, Compared, Draw, Figures, View
from ringlight.experiments.report.words import (
    HARD_SPACE,
    apart,
    called,
    figure,
    percent,
    quoted,
    seconds,
    upper_first,
    worth_tag,
)
from ringlight.fabric.utilisation import DEFINITIONS, Definition


@dataclass(frozen=True)
class _Line:
    """A metric of an arm beside others; ``one`` is None for the baseline."""

    metric: str
    at: Figures
    beside: Sequence[Figures]
    one: Compared | None = None

    def of(self, cell: Callable[[Compared, str], str], of_base: str = NOTHING) -> str:
        return of_base if self.one is None else cell(self.one, self.metric)


@section(21, "Comparison")
def comparison(view: View, draw: Draw) -> str:
    """Return the comparison of arms: each metric, its ratio, the published and the modelled figures."""
    found = [one for one in view.comparisons if one.arm in view.fixed]
    by_spec = [[one for one in found if one.spec is spec] for spec in view.experiment.spec.compare]
    if not found:
        return ""
    foot = any(metric.endswith("_predicted_with_setup") for metric in view.metrics)
    return (
        "<p>Job completion time runs from a job's release to the end of its last rank's last iteration; "
        "iteration and all-reduce times are medians over ranks and iterations, waiting for slower ranks "
        "included. The model takes every link to be shared max-min fairly by flows that send all the time, "
        f"without headers or losses {tag('analytic')}.{_scaled(view)}{_repeats(view)}{_worth(view)}"
        f"{view.says('comparison')}"
        f"</p>{''.join(_table(view, found) for found in by_spec if found)}"
        + quiet("* each wait for light as long as the median set-up of the run." * foot)
    )


def _scaled(view: View) -> str:
    """Sentence that explains the column of real time; empty without scaling."""
    scale = view.scale.time
    return "" if scale == 1 else f" In small print the same in real time, a {scale:g}th of the emulated."


def _repeats(view: View) -> str:
    n = max((run.plan.repeat for run in view.runs), default=1)
    return f" Figures are means of {n} runs with their 95 % interval." if n > 1 else ""


def _worth(view: View) -> str:
    """Return the meaning of the standings that a table has; empty without standings."""
    used = {row.standing for row in view.rows if row.label == PUBLISHED} - {"free"}
    said = "; ".join(f"<b>{standing}</b>: {text(WORTH[standing])}" for standing in WORTH if standing in used)
    return f" A published figure is {said}." if said else ""


def _table(view: View, found: Sequence[Compared]) -> str:
    """One for an entry of ``compare``: a group of rows for each metric, in it the baseline and each arm."""
    spec, title = found[0].spec, found[0].base.title
    several = len({one.arm for one in found}) > 1
    about = spec.title or (f"Against {quoted(title)}" if several else f"{found[0].title} against {title}")
    jobs = max(len(list(view.each("job", [one.arm]))) for one in found)

    def group(line: _Line) -> str:
        alone = line.at.subject == "run" or jobs == 1
        return text(upper_first(called(line.metric))) + ("" if alone else f", {text(line.at.subject)}")

    shown = table_of(
        list(_lines(found)),
        [
            ("", _name),
            (view.label, lambda line: line.at.figure(line.metric)),
            ("ratio", lambda line: line.of(_ratio, "1")),
            ("reduction", lambda line: line.of(_reduction)),
            (f"model {tag('analytic')}", lambda line: line.of(_model, figure(line.at.modelled(line.metric)))),
            (f"paper {tag('published')}", lambda line: line.of(_paper, _of_baseline(line))),
        ],
        group=group,
        strong=lambda line: line.one is not None,
    )
    notes = "".join(f"{_limit(one)}{_told_apart(one)}{_by_phase(one)}" for one in found)
    return f"<h3>{text(about)}</h3>{shown}{notes}"


def _lines(found: Sequence[Compared]) -> Iterator[_Line]:
    for subject in dict.fromkeys(one.subject for one in found):
        for metric in found[0].spec.metrics:
            mine = [one for one in found if one.subject == subject and one.row(f"{metric}_ratio")]
            for base in {str(one.base.point): one.base for one in mine}.values():
                yield _Line(metric, base, mine)
            for one in mine:
                yield _Line(metric, one, [one.base], one)


def _name(line: _Line) -> str:
    """Arm's title without the words with which its neighbours begin too."""
    short = {apart(line.at.title, other.title)[0] for other in line.beside}
    name = text(upper_first(short.pop() if len(short) == 1 else line.at.title))
    verdict = line.at.view.fidelity.get("arms", {}).get(line.at.arm, "good")
    return name if verdict == "good" else f"{name} {mark(verdict, verdict)}"


def _ratio(one: Compared, metric: str) -> str:
    each = ", ".join(f"{row.value:.4f}" for row in one.repeats(f"{metric}_ratio") if is_number(row.value))
    row = one.row(f"{metric}_ratio")
    spread = f" ± {row.spread:.4f}" if row is not None and row.spread is not None else ""
    return f"{one.ratio(metric) or 0:.4f}{spread}" + (f"<br><small>each: {each}</small>" if each else "")


def _reduction(one: Compared, metric: str) -> str:
    """Reduction of a time, byte count or count that fell; NOTHING for other units and for growth."""
    mine, saved = one.row(metric), one.number(f"{metric}_reduction") or 0
    less = saved > 0 and mine is not None and mine.unit in ("s", "bytes", "count")
    return one.figure(f"{metric}_reduction") if less else NOTHING


def _against(ratio: float, of: Row | None) -> str:
    """A ratio as it is best compared: what is saved, where that is much."""
    saved = of is not None and of.unit == "s" and ratio < 0.9
    return f"−{100 * (1 - ratio):.1f}{HARD_SPACE}%" if saved else f"{ratio:.4f}"


def _model(one: Compared, metric: str) -> str:
    found, ratio = one.modelled(metric), one.model_ratio(metric)
    set_up = " *" if found is not None and found.metric.endswith("_with_setup") else ""
    return f"{figure(found)}{set_up}{f', {_against(ratio, found)}' if ratio is not None else ''}"


def _of_baseline(line: _Line) -> str:
    paper = line.at.row(line.metric, PUBLISHED)
    return f"{figure(paper)} {worth_tag(paper)}" if paper is not None else NOTHING


def _paper(one: Compared, metric: str) -> str:
    mine, ratio = one.row(metric, PUBLISHED), one.ratio(metric, PUBLISHED)
    ends = [one.row(f"{metric}_ratio_{end}", PUBLISHED) for end in ("from", "to")]
    said = [figure(mine)] if mine is not None else []
    if ratio is not None:
        said.append(_against(ratio, mine))
    if all(ends):
        within = one.value(f"{metric}_ratio_agrees")
        word = {True: mark("good", "agrees"), False: mark("bad", "differs")}.get(bool(within), "")
        said.append(f"{' to '.join(map(figure, ends))} × {word if within is not None else ''}")
    worth = mine or one.row(f"{metric}_ratio", PUBLISHED) or ends[0]
    return f"{', '.join(said)} {worth_tag(worth)}" if said else NOTHING


def _limit(one: Compared) -> str:
    kept = one.value("within_limit")
    if kept is None or one.spec.limit is None:
        return ""
    word = mark("good", "kept") if kept else mark("bad", "not kept")
    return (
        f"<p>{text(one.title)}: the limit of {one.spec.limit:g} on the ratio of the "
        f"{called(one.spec.metrics[0])} is {word} {tag(one.view.label)}.</p>"
    )


def _told_apart(one: Compared) -> str:
    """Return how small a slowdown the runs could have shown; empty if unknown."""
    least, set_up = one.numbers("iteration_told_apart", "setup_told_apart")
    if least is None:
        return ""
    waits = f", or a set-up of {seconds(set_up)} for each flow in real time," if set_up is not None else ""
    return (
        f"<p>{text(one.title)}: given the spread of the iterations of {text(one.name)} in both arms, a "
        f"slowdown of less than {percent(least, 2)}{waits} cannot be distinguished from none (95 %) "
        f"{tag('measured')}.</p>"
    )


def _by_phase(one: Compared) -> str:
    """Return a remark if the moments at which later jobs begin decide as much as the arm; else empty."""
    if "jct" not in one.spec.metrics or not one.phases_overlap:
        return ""
    return (
        f"<p>{text(one.title)}: the completion times of {text(one.name)} are no further apart in both arms "
        f"than they are in each when later jobs begin at other moments {tag('simulated')}.</p>"
    )


# GPU utilisation.


@section(26, "GPU utilisation, by definition", needs=(f"{UTILISATION}_ratio",))
def utilisation(view: View, draw: Draw) -> str:
    """Return the GPU utilisation of compared jobs by definition, and which definitions agree with
    published figures."""
    compared = [one for one in view.comparisons if one.arm in view.fixed and one.subject.startswith("job ")]
    claims = [one for one in compared if UTILISATION in one.spec.metrics]
    if not claims:
        return ""
    head = ["what counts as busy", *(f"{text(_title(one))} {tag(view.label)}" for one in claims)]
    rows = [
        row([f"{text(d.title)}<br><small>{text(d.why)}</small>", *(_cell(one, name) for one in claims)], 1)
        for name, d in DEFINITIONS.items()
    ]
    published = [_range(one) for one in claims]
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


def _range(one: Compared) -> str:
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
    """Return which definitions agree with all published figures, and how much waiting would have to count."""
    of_claim = {
        _title(one): [d for name, d in DEFINITIONS.items() if _agrees(one, name)]
        for one in claims
        if _range(one)
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
