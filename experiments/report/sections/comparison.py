"""Arms against a baseline: what each metric is, its ratio, what is published, what the model says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.analysis.rows import Row
from experiments.analysis.statistics import is_number
from experiments.language.spec import CompareSpec
from experiments.report.page import row, table, tag, text
from experiments.report.report import Draw
from experiments.report.sections.header import model_ratio
from experiments.report.view import Compared, Point, View, job_of
from experiments.report.words import (
    apart,
    called,
    figure,
    percent,
    quoted,
    seconds,
    upper_first,
    worth_tag,
)

ORDER = 10
NEEDS: tuple[str, ...] = ()


def wanted(view: View) -> bool:
    return any(one.arm in view.fixed for spec in view.experiment.spec.compare for one in view.compared(spec))


def render(view: View, draw: Draw) -> str:
    said = f" {text(view.says('comparison'))}" if view.says("comparison") else ""
    tables = "".join(_table(view, spec) for spec in view.experiment.spec.compare)
    return (
        "<h2>Comparison</h2><p>Job completion time runs from a job's release to the end of its last rank's "
        "last iteration; iteration and all-reduce times are medians over ranks and iterations, waiting for "
        "slower ranks included. The model takes every link to be shared max-min fairly by flows that send "
        f"all the time, without headers or losses {tag('analytic')}.{_repeats(view)}{_worth(view)}{said}</p>"
        f"{tables}{_foot(view)}"
    )


def _foot(view: View) -> str:
    if not any(metric.endswith("_predicted_with_setup") for metric in view.metrics):
        return ""
    return '<p class="quiet">* each wait for light as long as the median set-up of the run.</p>'


def _repeats(view: View) -> str:
    n = max((run.plan.repeat for run in view.runs), default=1)
    return f" Figures are means of {n} runs with their 95 % interval." if n > 1 else ""


def _worth(view: View) -> str:
    """What fitted and predicted mean, where they stand in a table."""
    standings = {found.standing for found in view.rows if found.label == "published"}
    if "fitted" not in standings and "predicted" not in standings:
        return ""
    return (
        " Of published figures, <b>fitted</b>: a parameter was derived from this very figure, so that "
        "agreement is no evidence; <b>predicted</b>: none was."
    )


def _table(view: View, spec: CompareSpec) -> str:
    """One for an entry of ``compare``: a group of rows for each metric, in it the baseline and each arm."""
    found = [one for one in view.compared(spec) if one.arm in view.fixed]
    if not found:
        return ""
    subjects = list(dict.fromkeys(s for one in found for s in view.compared_subjects(one)))
    columns = _columns(view, found, subjects)
    rows = [r for s in subjects for m in spec.metrics for r in _metric(view, found, s, m, columns)]
    about = spec.title or (
        f"{view.title(found[0].arm)} against {view.title(spec.baseline)}"
        if len(found) == 1
        else f"Against {quoted(view.title(spec.baseline))}"
    )
    notes = [f"{_limit(view, one, s)}{_told_apart(view, one, s)}" for one in found for s in subjects]
    return f"<h3>{text(about)}</h3>{table(['', view.label, 'ratio', *columns], rows, 1)}{''.join(notes)}"


_REDUCTION, _MODEL, _PAPER = "reduction", f"model {tag('analytic')}", f"paper {tag('published')}"


def _columns(view: View, found: Sequence[Compared], subjects: Sequence[str]) -> list[str]:
    """Those besides the run's own figures that have something in them."""
    keys = [(one, s, metric) for one in found for s in subjects for metric in one.spec.metrics]
    rows = [view.of_comparison(one, s, f"{metric}_reduction") for one, s, metric in keys]
    there = {
        _REDUCTION: any(is_number(row.value) and row.value > 0 for row in rows if row is not None),
        _MODEL: any(_model(view, *key) != "–" for key in keys),
        _PAPER: any(_paper(view, *key) != "–" for key in keys),
    }
    return [column for column, has in there.items() if has]


def _metric(
    view: View, found: Sequence[Compared], subject: str, metric: str, columns: Sequence[str]
) -> Iterator[str]:
    """The rows of one metric of one subject."""
    spec = found[0].spec
    compared = [one for one in found if view.of_comparison(one, subject, f"{metric}_ratio") is not None]
    if not compared:
        return
    alone = subject == "run" or all(len(view.subjects(one.arm, "job")) == 1 for one in found)
    of = "" if alone else f", {text(subject)}"
    name = f"{text(upper_first(called(metric)))}{of}"
    yield f'<tr class="group"><td colspan="{3 + len(columns)}">{name}</td></tr>'
    for at in {str(view.baseline_point(one)): view.baseline_point(one) for one in compared}.values():
        over = view.row(spec.baseline, subject, metric, at)
        model = _modelled(view, spec.baseline, subject, metric, at)
        paper = view.published(spec.baseline, subject, metric)
        name = _name(view, spec.baseline, [one.arm for one in compared])
        shown = f"{figure(paper)} {worth_tag(paper)}" if paper is not None else "–"
        beside = {_REDUCTION: "–", _MODEL: figure(model), _PAPER: shown}
        yield row([name, figure(over), "1", *(beside[column] for column in columns)], 1)
    for one in compared:
        yield from _arm(view, one, subject, metric, columns)


def _name(view: View, arm: str, others: Sequence[str]) -> str:
    """Of an arm beside others, without what all of them begin with."""
    title = view.title(arm)
    short = {apart(title, view.title(other))[0] for other in others}
    return text(upper_first(short.pop() if len(short) == 1 else title))


def _arm(view: View, one: Compared, subject: str, metric: str, columns: Sequence[str]) -> Iterator[str]:
    mine = view.row(one.arm, subject, metric, one.point)
    ratio = view.of_comparison(one, subject, f"{metric}_ratio")
    saved = view.of_comparison(one, subject, f"{metric}_reduction")
    beside = {
        _REDUCTION: _reduction(saved, mine.unit if mine is not None else ""),
        _MODEL: _model(view, one, subject, metric),
        _PAPER: _paper(view, one, subject, metric),
    }
    name = _name(view, one.arm, [one.spec.baseline])
    cells = [name, figure(mine), _ratio(ratio), *(beside[column] for column in columns)]
    yield row(cells, 1, "strong")
    found = sorted(view.repeats(one.arm, subject, f"{metric}_ratio", one.point), key=lambda r: r.repeat or 0)
    if found:
        each = ", ".join(_ratio(single) for single in found)
        yield f'<tr><td colspan="{3 + len(columns)}"><small>ratio of each repeat: {each}</small></td></tr>'


def _ratio(found: Row | None) -> str:
    if found is None or not is_number(found.value):
        return "–"
    spread = f" ± {found.spread:.4f}" if found.spread is not None else ""
    return f"{found.value:.4f}{spread}"


def _reduction(found: Row | None, unit: str) -> str:
    """Of times and the like that became less; nobody wants to reduce a share or a rate."""
    less = found is not None and is_number(found.value) and found.value > 0
    return figure(found) if less and unit in ("s", "bytes", "count") else "–"


def _against(ratio: float, unit: str) -> str:
    """A ratio as it is best compared: what is saved, where that is much."""
    return f"−{100 * (1 - ratio):.1f}\u00a0%" if unit == "s" and ratio < 0.9 else f"{ratio:.4f}"


def _modelled(view: View, arm: str, subject: str, metric: str, at: Point) -> Row | None:
    names = (f"{metric}_predicted_with_setup", f"{metric}_predicted")
    return next((f for name in names if (f := view.row(arm, subject, name, at)) is not None), None)


def _model(view: View, one: Compared, subject: str, metric: str) -> str:
    found, ratio = (
        _modelled(view, one.arm, subject, metric, one.point),
        model_ratio(view, one, subject, metric),
    )
    if found is None:
        return "–"
    set_up = " *" if found.metric.endswith("_with_setup") else ""
    return f"{figure(found)}{set_up}{f', {_against(ratio, found.unit)}' if ratio is not None else ''}"


def _paper(view: View, one: Compared, subject: str, metric: str) -> str:
    mine = view.published(one.arm, subject, metric)
    ratio = view.of_comparison(one, subject, f"{metric}_ratio", "published")
    ends = [view.published(one.arm, subject, f"{metric}_ratio_{end}") for end in ("from", "to")]
    said = [figure(mine)] if mine is not None else []
    if ratio is not None and is_number(ratio.value):
        said.append(_against(ratio.value, mine.unit if mine is not None else ""))
    if all(ends):
        within = view.value(one.arm, subject, f"{metric}_ratio_agrees", one.point)
        word = {True: '<b class="good">agrees</b>', False: '<b class="bad">differs</b>'}.get(within, "")
        said.append(f"{' to '.join(figure(end) for end in ends)} × {word}")
    worth = mine or ratio or ends[0]
    return f"{', '.join(said)} {worth_tag(worth)}" if said else "–"


def _limit(view: View, one: Compared, subject: str) -> str:
    kept, limit = view.of_comparison(one, subject, "within_limit"), one.spec.limit
    if kept is None or limit is None:
        return ""
    word = "kept" if kept.value else "not kept"
    return (
        f"<p>{text(view.title(one.arm))}: the limit of {limit:g} on the ratio of the "
        f"{called(one.spec.metrics[0])} is "
        f'<b class="{"good" if kept.value else "bad"}">{word}</b> {tag(view.label)}.</p>'
    )


def _told_apart(view: View, one: Compared, subject: str) -> str:
    """How small a slowdown the runs could have shown."""
    least = view.of_comparison(one, subject, "iteration_told_apart")
    if least is None or not is_number(least.value):
        return ""
    set_up = view.of_comparison(one, subject, "setup_told_apart")
    waits = (
        f", or a set-up of {seconds(set_up.value)} for each flow in real time,"
        if set_up is not None and is_number(set_up.value)
        else ""
    )
    return (
        f"<p>{text(view.title(one.arm))}: by how far the iterations of {text(job_of(subject))} lie apart in "
        f"both arms, a slowdown of less than {percent(least.value, 2)}{waits} cannot be told from none "
        f"(95 %) {tag('measured')}.</p>"
    )
