"""Arms against a baseline: each metric with its ratio, and GPU utilisation by its definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ringlight.experiments.analysis.compare import UTILISATION
from ringlight.experiments.analysis.metrics.utilisation import WINDOW
from ringlight.experiments.analysis.rows import WORTH, Row
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.report.page import (
    NOTHING,
    folded,
    mark,
    quiet,
    row,
    table,
    table_of,
    tag,
    text,
)
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
class _ComparisonLine:
    """A metric of an arm beside others; ``compared`` is None for the baseline."""

    metric: str
    figures: Figures
    beside: Sequence[Figures]
    compared: Compared | None = None

    def of(self, cell: Callable[[Compared, str], str], of_base: str = NOTHING) -> str:
        return of_base if self.compared is None else cell(self.compared, self.metric)


@section(21, "Comparison")
def comparison(view: View, draw: Draw) -> str:
    """Return HTML that shows the comparison of arms: each metric, its ratio, the published and the
    modelled figures."""
    pairs = [pair for pair in view.comparisons if pair.arm in view.fixed]
    by_spec = [
        [pair for pair in pairs if pair.spec is spec]
        for spec in view.experiment.spec.compare
    ]
    if not pairs:
        return ""
    words = f"{_explained(pairs)}{_scaled(view)}{_repeats(view)}{_worth(view)}{view.says('comparison')}"
    foot = any(metric.endswith("_predicted_with_setup") for metric in view.metrics)
    return (
        f"<p>{words.strip()}</p>" * bool(words)
        + "".join(_table(view, pairs) for pairs in by_spec if pairs)
        + quiet("* each wait for light as long as the median set-up of the run." * foot)
    )


def _explained(pairs: Sequence[Compared]) -> str:
    """Return the meaning of the times of jobs that are compared, and of the model if it has figures."""
    compared = {metric for pair in pairs for metric in pair.spec.metrics}
    sentences = []
    if "jct" in compared:
        sentences.append(
            "Job completion time runs from a job's release to the end of its last rank's last iteration."
        )
    if compared & {"iteration", "allreduce"}:
        sentences.append(
            "Iteration and all-reduce times are medians over ranks and iterations, waiting for slower ranks "
            "included."
        )
    if any(pair.modelled(metric) for pair in pairs for metric in compared):
        sentences.append(
            "The model takes every link to be shared max-min fairly by flows that send all the time, "
            f"without headers or losses {tag('analytic')}."
        )
    return " ".join(sentences)


def _scaled(view: View) -> str:
    """Return a sentence that explains the column of real time; empty without scaling."""
    scale = view.scale.time
    return (
        ""
        if scale == 1
        else f" In small print the same in real time, a {scale:g}th of the emulated."
    )


def _repeats(view: View) -> str:
    n = max((run.plan.repeat for run in view.runs), default=1)
    return f" Figures are means of {n} runs with their 95 % interval." if n > 1 else ""


def _worth(view: View) -> str:
    """Return the meaning of the standings that a table has; empty without standings."""
    used = {row.standing for row in view.rows if row.label == PUBLISHED} - {"free"}
    meanings = "; ".join(
        f"<b>{standing}</b>: {text(WORTH[standing])}"
        for standing in WORTH
        if standing in used
    )
    return f" A published figure is {meanings}." if meanings else ""


def _table(view: View, pairs: Sequence[Compared]) -> str:
    """One for an entry of ``compare``: a group of rows for each metric, in it the baseline and each arm."""
    spec, title = pairs[0].spec, pairs[0].base.title
    several = len({pair.arm for pair in pairs}) > 1
    about = spec.title or (
        f"Against {quoted(title)}" if several else f"{pairs[0].title} against {title}"
    )
    jobs = max(len(list(view.each("job", [pair.arm]))) for pair in pairs)

    def group(line: _ComparisonLine) -> str:
        alone = line.figures.subject == "run" or jobs == 1
        return text(upper_first(called(line.metric))) + (
            "" if alone else f", {text(line.figures.subject)}"
        )

    shown = table_of(
        list(_lines(pairs)),
        [
            ("", _name),
            (view.label, lambda line: line.figures.figure(line.metric)),
            ("ratio", lambda line: line.of(_ratio, "1")),
            ("reduction", lambda line: line.of(_reduction)),
            (
                f"model {tag('analytic')}",
                lambda line: line.of(
                    _model, figure(line.figures.modelled(line.metric))
                ),
            ),
            (
                f"paper {tag('published')}",
                lambda line: line.of(_paper, _of_baseline(line)),
            ),
        ],
        group=group,
        strong=lambda line: line.compared is not None,
    )
    notes = "".join(
        f"{_limit(pair)}{_smallest_slowdown(pair)}{_by_phase(pair)}" for pair in pairs
    )
    return f"<h3>{text(about)}</h3>{shown}{notes}"


def _lines(pairs: Sequence[Compared]) -> Iterator[_ComparisonLine]:
    for subject in dict.fromkeys(pair.subject for pair in pairs):
        for metric in pairs[0].spec.metrics:
            mine = [
                pair
                for pair in pairs
                if pair.subject == subject and pair.row(f"{metric}_ratio")
            ]
            for base in {str(pair.base.point): pair.base for pair in mine}.values():
                yield _ComparisonLine(metric, base, mine)
            for pair in mine:
                yield _ComparisonLine(metric, pair, [pair.base], pair)


def _name(line: _ComparisonLine) -> str:
    """Return the arm's title without the words with which its neighbours also begin."""
    short = {apart(line.figures.title, other.title)[0] for other in line.beside}
    name = text(upper_first(short.pop() if len(short) == 1 else line.figures.title))
    verdict = line.figures.view.fidelity.get("arms", {}).get(line.figures.arm, "good")
    return name if verdict == "good" else f"{name} {mark(verdict, verdict)}"


def _ratio(pair: Compared, metric: str) -> str:
    each = ", ".join(
        f"{row.value:.4f}"
        for row in pair.repeats(f"{metric}_ratio")
        if is_number(row.value)
    )
    row = pair.row(f"{metric}_ratio")
    spread = (
        f" ± {row.spread:.4f}" if row is not None and row.spread is not None else ""
    )
    return f"{pair.ratio(metric) or 0:.4f}{spread}" + (
        f'<br><small class="each">each: {each}</small>' if each else ""
    )


def _reduction(pair: Compared, metric: str) -> str:
    """Return the reduction of a time, byte count or count that fell; NOTHING for other units and for
    growth."""
    mine, saved = pair.row(metric), pair.number(f"{metric}_reduction") or 0
    less = saved > 0 and mine is not None and mine.unit in ("s", "bytes", "count")
    return pair.figure(f"{metric}_reduction") if less else NOTHING


def _against(ratio: float, of: Row | None) -> str:
    """A ratio as it is best compared: what is saved, where that is much."""
    saved = of is not None and of.unit == "s" and ratio < 0.9
    return f"−{100 * (1 - ratio):.1f}{HARD_SPACE}%" if saved else f"{ratio:.4f}"


def _model(pair: Compared, metric: str) -> str:
    modelled, ratio = pair.modelled(metric), pair.model_ratio(metric)
    set_up = (
        " *" if modelled is not None and modelled.metric.endswith("_with_setup") else ""
    )
    return f"{figure(modelled)}{set_up}{f', {_against(ratio, modelled)}' if ratio is not None else ''}"


def _of_baseline(line: _ComparisonLine) -> str:
    paper = line.figures.row(line.metric, PUBLISHED)
    return f"{figure(paper)} {worth_tag(paper)}" if paper is not None else NOTHING


def _paper(pair: Compared, metric: str) -> str:
    mine, ratio = pair.row(metric, PUBLISHED), pair.ratio(metric, PUBLISHED)
    ends = [pair.row(f"{metric}_ratio_{end}", PUBLISHED) for end in ("from", "to")]
    parts = [figure(mine)] if mine is not None else []
    if ratio is not None:
        parts.append(_against(ratio, mine))
    if all(ends):
        within = pair.value(f"{metric}_ratio_agrees")
        word = {True: mark("good", "agrees"), False: mark("bad", "differs")}.get(
            bool(within), ""
        )
        parts.append(
            f"{' to '.join(map(figure, ends))} × {word if within is not None else ''}"
        )
    worth = mine or pair.row(f"{metric}_ratio", PUBLISHED) or ends[0]
    return f"{', '.join(parts)} {worth_tag(worth)}" if parts else NOTHING


def _limit(pair: Compared) -> str:
    kept = pair.value("within_limit")
    if kept is None or pair.spec.limit is None:
        return ""
    word = mark("good", "kept") if kept else mark("bad", "not kept")
    return (
        f"<p>{text(pair.title)}: the limit of {pair.spec.limit:g} on the ratio of the "
        f"{called(pair.spec.metrics[0])} is {word} {tag(pair.view.label)}.</p>"
    )


def _smallest_slowdown(pair: Compared) -> str:
    """Return how small a slowdown the runs could have shown; empty if unknown."""
    least, set_up = pair.numbers("iteration_told_apart", "setup_told_apart")
    if least is None:
        return ""
    waits = (
        f", or a set-up of {seconds(set_up)} for each flow in real time,"
        if set_up is not None
        else ""
    )
    return (
        f"<p>{text(pair.title)}: given the spread of the iterations of {text(pair.name)} in both arms, a "
        f"slowdown of less than {percent(least, 2)}{waits} cannot be distinguished from none (95 %) "
        f"{tag('measured')}.</p>"
    )


def _by_phase(pair: Compared) -> str:
    """Return a remark if the moments at which later jobs begin decide as much as the arm; else empty."""
    if "jct" not in pair.spec.metrics or not pair.phases_overlap:
        return ""
    return (
        f"<p>{text(pair.title)}: the completion times of {text(pair.name)} are no further apart in both arms "
        f"than they are in each when later jobs begin at other moments {tag('simulated')}.</p>"
    )


# GPU utilisation.


@section(26, "GPU utilisation, by definition", needs=(f"{UTILISATION}_ratio",))
def utilisation(view: View, draw: Draw) -> str:
    """Return HTML that shows the GPU utilisation of compared jobs by definition, and which definitions
    agree with published figures."""
    compared = [
        pair
        for pair in view.comparisons
        if pair.arm in view.fixed and pair.subject.startswith("job ")
    ]
    claims = [pair for pair in compared if UTILISATION in pair.spec.metrics]
    if not claims:
        return ""
    head = [
        "what counts as busy",
        *(f"{text(_title(pair))} {tag(view.label)}" for pair in claims),
    ]
    rows = [
        row(
            [
                f"{text(d.title)}<br><small>{text(d.why)}</small>",
                *(_cell(pair, name) for pair in claims),
            ],
            1,
        )
        for name, d in DEFINITIONS.items()
    ]
    published = [_range(pair) for pair in claims]
    if any(published):
        cells = (cell or NOTHING for cell in published)
        rows.append(row([f"paper {tag(PUBLISHED)}", *cells], 1, "strong"))
    return (
        "<p>A counter shows in how much of the time a kernel was executing; how much of a collective that is "
        "depends on how the collective is made. So here are several definitions, each from the same runs."
        f"{view.says('utilisation')}</p>{_quoted(view, claims)}{_agreement(claims)}"
        + folded(f"All {len(DEFINITIONS)} definitions", table(head, rows, 1))
    )


def _title(pair: Compared) -> str:
    return f"{pair.spec.title or pair.title}, {pair.subject}"


def _cell(pair: Compared, name: str) -> str:
    metric = f"{UTILISATION}.{name}"
    ratio, known = pair.ratio(metric), pair.row(f"{metric}_ratio")
    if ratio is None or known is None:
        return NOTHING
    before = (
        pair.number(f"{metric}_baseline")
        if name == WINDOW
        else pair.base.number(metric)
    )
    agrees, gain = _agrees(pair, name), f"{ratio:.2f} ×"
    if agrees is not None:
        gain = mark("good" if agrees else "bad", gain)
    supposed = f" {tag('analytic')}" if known.label == "analytic" else ""
    return f"{percent(before, 0)} → {percent(pair.number(metric), 0)}, {gain}{supposed}"


def _agrees(pair: Compared, name: str) -> bool | None:
    return pair.truth(f"{UTILISATION}.{name}_ratio_agrees")


def _range(pair: Compared) -> str:
    ends = [pair.row(f"{UTILISATION}_ratio_{end}", PUBLISHED) for end in ("from", "to")]
    return (
        f"{' to '.join(map(figure, ends))} × {worth_tag(ends[0])}" if all(ends) else ""
    )


def _quoted(view: View, claims: Sequence[Compared]) -> str:
    arms = {pair.arm: _title(pair) for pair in claims}
    quotes = [
        f"{text(arms[figure.arm])}: “{text(figure.words)}”"
        for figure in view.experiment.spec.published
        if figure.words is not None
        and figure.metric == UTILISATION
        and figure.arm in arms
    ]
    if not quotes:
        return ""
    return f"<p>Published, read as the ranges in the last row: {'; '.join(quotes)}.</p>"


def _listed(definitions: Sequence[Definition]) -> str:
    return (
        " and ".join(f"“{text(definition.title)}”" for definition in definitions)
        or "none"
    )


def _agreement(claims: Sequence[Compared]) -> str:
    """Return which definitions agree with all published figures, and how much waiting would have to count."""
    of_claim = {
        _title(pair): [d for name, d in DEFINITIONS.items() if _agrees(pair, name)]
        for pair in claims
        if _range(pair)
    }
    if not of_claim:
        return ""
    in_all = [
        d
        for d in DEFINITIONS.values()
        if all(d in agreeing for agreeing in of_claim.values())
    ]
    if in_all:
        words = f"Consistent with all that is published: {_listed(in_all)}."
    else:
        each = "; ".join(
            f"{text(title)} agrees with {_listed(agreeing)}"
            for title, agreeing in of_claim.items()
        )
        words = (
            f"<b>No definition is consistent with all that is published</b>: {each}."
        )
    ends = [
        (pair, pair.numbers("waiting_counted_from", "waiting_counted_to"))
        for pair in claims
    ]
    shares = [
        f"{' to '.join(percent(end, 0) for end in both)} for {text(pair.title)}"
        for pair, both in ends
        if None not in both
    ]
    if shares:
        words += f" Of the time without computing, a counter would have to count {', '.join(shares)} "
        words += f"{tag('analytic')}."
    return (
        f"<p>{words} A definition that counts the same work in every iteration gives the speed-up itself, "
        "whatever overlaps and however unequal the GPUs are; one that counts all waiting gives 1.</p>"
    )
