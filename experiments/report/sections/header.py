"""Report what the run is, what it found, and its most important figures as cards."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ringlight.experiments.analysis.latency import latency_words
from ringlight.experiments.analysis.statistics import percentile
from ringlight.experiments.report.page import NO_RESULT, hero, mark, text
from ringlight.experiments.report.page import header as head_of
from ringlight.experiments.report.sections import DOUBTS, section
from ringlight.experiments.report.view import MOST_JOBS, Compared, Draw, Figures, View, real
from ringlight.experiments.report.words import (
    HARD_SPACE,
    apart,
    called,
    percent,
    quoted,
    seconds,
    upper_first,
)

#: More cards than these would be a table, and there is one.
_MOST_CARDS = 6
#: A ratio so near to 1 is none.
_ALIKE = 0.01
_WORKERS = {"docker": "Docker containers", "namespace": "network namespaces, no containers"}
Card = tuple[str, str, str]


@section(0)
def header(view: View, draw: Draw) -> str:
    """Return the head of the page: what the run is, what it found, and its most important figures as
    cards."""
    headline = _headline(view)
    lead = view.experiment.spec.description
    links = {} if view.simulated else {"fidelity": DOUBTS}
    top = head_of(f"Ringlight run {view.name}", headline, lead, _chips(view), view.complete, links)
    return top + hero(list(itertools.islice(_cards(view), _MOST_CARDS)))


def _chips(view: View) -> Iterator[tuple[str, object]]:
    emulated = _WORKERS.get(str(view.environment.get("runtime")), "emulated")
    yield "workers", "none, simulated in virtual time" if view.simulated else emulated
    fabrics = [setting.fabric for setting in view.settings]
    yield "GPUs", " or ".join(map(str, sorted({len(fabric.gpus) for fabric in fabrics})))
    if len(fabrics) > 1:
        yield "fabrics", len(fabrics)
    else:
        kinds = {"packet": fabrics[0].packet_switches, "optical": fabrics[0].optical_switches}
        yield from ((f"{kind} switches", len(found)) for kind, found in kinds.items() if found)
    if len(view.arms) > 1:
        yield "arms", len(view.arms)
    if len(view.runs) != len(view.arms):
        yield "runs", f"{len(view.runs):,}"
    scales = {plan.setting.scale for plan in view.experiment.plans}
    yield "time × ", ", ".join(f"{time:g}" for time in sorted({scale.time for scale in scales}))
    yield "payload ÷ ", ", ".join(f"{size:g}" for size in sorted({scale.payload for scale in scales}))
    if view.simulated:
        yield "latency of a transfer", latency_words(view.experiment.plans, view.environment)
    else:
        verdict, arms = view.fidelity["verdict"], view.fidelity.get("arms", {})
        those = [arm for arm in arms if arms[arm] == verdict]
        some = f", {len(those)} of {len(arms)} arms" if 0 < len(those) < len(arms) else ""
        yield "fidelity", f"{verdict}{some}"


def _verdict(view: View, *arms: str) -> str:
    """The worst verdict on some arms; ``simulated`` where nobody judged them."""
    of_arms = view.fidelity.get("arms", {})
    found = {of_arms.get(arm, view.fidelity["verdict"]) for arm in arms}
    return next((verdict for verdict in ("bad", "doubtful") if verdict in found), "good")


def _doubt(view: View, *arms: str) -> str:
    """A remark for a figure of ``arms``, the first of which it names, where they are not all good."""
    worst = _verdict(view, *arms)
    if worst == "good":
        return ""
    those = [view.title(arm) for arm in arms if _verdict(view, arm) == worst]
    words = "doubtful" if worst == "doubtful" else "not to be believed"
    own = view.title(arms[0]) in those
    return f", {mark(worst, words if own else text(f'{words}: {those[0]}'))}"


# The headline.


def _headline(view: View) -> str:
    """Return the finding of arms that can be believed; marked as doubtful if only doubtful arms have one."""
    ran = view.arms or view.experiment.arms
    believed = [arm for arm in ran if _verdict(view, arm) != "bad"]
    if not believed:
        return NO_RESULT
    spec, jobs = view.experiment.spec, [job for run in view.runs for job in run.jobs.values()]
    if spec.break_even is not None:
        return "Up to which set-up time does switching light per flow pay?"
    if spec.crossover is not None:
        return f"Where does {view.title(spec.crossover.arms[0])} win, and where does it lose?"
    # The file's first comparison is the one that it is about, where it holds.
    ratios = list(_first_ratios(view))
    for verdict, said in (("good", "{}"), ("doubtful", "{}; doubtful")):
        for one, ratio in ratios:
            if _verdict(view, one.arm, one.base.arm) == verdict:
                return said.format(_compared(view, one, ratio))
    if len(believed) < len(ran):
        return (
            f"{upper_first(spec.name.replace('-', ' '))}: {len(believed)} of {len(ran)} arms can be believed"
        )
    if failed := sum(job.state == "FAILED" for job in jobs):
        return f"{spec.name}: {failed} of {len(jobs)} jobs failed"
    return f"{upper_first(spec.name.replace('-', ' '))}: {len(jobs)} job{'' if len(jobs) == 1 else 's'}"


def _first_ratios(view: View) -> Iterator[tuple[Compared, float]]:
    """Each comparison with the ratio of its first metric."""
    for one in view.comparisons:
        ratio = one.ratio(one.spec.metrics[0])
        if ratio is not None:
            yield one, ratio


def _compared(view: View, one: Compared, ratio: float) -> str:
    metric, title, base = one.spec.metrics[0], one.title, one.base.title
    if one.arm not in view.fixed:
        of_arm = [r for other, r in _first_ratios(view) if other.spec == one.spec and other.arm == one.arm]
        between = " to ".join(_times(end) for end in (min(of_arm), max(of_arm)))
        return f"{upper_first(title)}: {called(metric)} {between} times that of {quoted(base)}"
    ours, theirs = apart(title, base)
    theirs = quoted(theirs) if theirs == base else theirs
    if metric == "jct" and one.phases_overlap:
        said = f"{called(metric)} not told apart from that of {theirs}, as more depends on when jobs begin"
    elif abs(ratio - 1) < _ALIKE:
        said = f"{called(metric)} as with {theirs}, to within 1 %"
    elif (row := one.row(metric)) is not None and row.unit == "s" and ratio < 1:
        said = f"{_times(1 / ratio)} times as fast as {theirs}"
    else:
        said = f"{called(metric)} {_times(ratio)} times that of {theirs}"
    return f"{upper_first(ours)}: {said}"


def _times(ratio: float) -> str:
    return f"{ratio:.{1 if ratio >= 2 else 2 if ratio >= 1.1 else 3}f}"


# Cards.


def _cards(view: View) -> Iterator[Card]:
    compared = [_card_of(view, *found) for found in _first_ratios(view) if found[0].arm in view.fixed]
    yield from compared or _job_times(view)
    yield from _events(view)
    yield from _set_ups(view)
    yield from _break_even(view)


def _card_of(view: View, one: Compared, ratio: float) -> Card:
    metric, saved = one.spec.metrics[0], ratio < 0.9 and one.number(f"{one.spec.metrics[0]}_reduction")
    name = f"{metric}_reduction" if saved else f"{metric}_ratio"
    mine, paper, model = one.row(name), one.row(name, "published"), one.model_ratio(metric)

    def plain(value: object, digits: int = 1 if saved else 4) -> str:
        return f"{value:.{digits}f}{' %' if saved else ''}"

    base = text(quoted(one.base.title))
    remarks = [f"{called(metric)} saved" if saved else f"times the {called(metric)} of {base}"]
    if mine is not None and mine.spread is not None:
        remarks.append(f"± {plain(mine.spread).removesuffix(' %')}")
    if paper is not None:
        remarks.append(f"paper {plain(paper.value)} ({paper.standing})")
    if model is not None:
        remarks.append(f"model {plain(100 * (1 - model) if saved else model)}")
    kept = one.value("within_limit")
    if metric == "jct" and one.phases_overlap:
        remarks.append("more depends on when jobs begin")
    if kept is not None:
        remarks.append(f"limit {one.spec.limit:g} {'kept' if kept else mark('bad', 'not kept')}")
    doubt = _doubt(view, one.arm, one.base.arm)
    of_arm = [other for other in view.comparisons if other.spec is one.spec and other.arm == one.arm]
    what = one.title if len({other.subject for other in of_arm}) == 1 else f"{one.title}, {one.subject}"
    return text(what), f"−{saved:.1f} <small>%</small>" if saved else plain(ratio), ", ".join(remarks) + doubt


def _big(value: float | None) -> str:
    figure, _, unit = seconds(value).partition(HARD_SPACE)
    return f"{figure} <small>{unit}</small>"


def _stands(at: Figures, metric: str) -> str:
    """The real time that a card's figure stands for; nothing where time is not scaled."""
    found = real(at, metric)
    return "" if found is None else f", stands for {seconds(found)}"


def _job_times(view: View) -> Iterator[Card]:
    """Times of jobs, for a report without a comparison: of all, or how those of many are spread."""
    for arm in view.fixed:
        if len(view.first[arm].jobs) > MOST_JOBS:
            yield from _crowd_times(view, arm)
    for at in (at for at in view.each("job") if len(view.first[at.arm].jobs) <= MOST_JOBS):
        jct, delay = at.numbers("jct", "queueing_delay")
        state = str(at.value("state"))
        name = text(f"{at.name}, {at.title}" if len(view.arms) > 1 else at.name)
        if jct is not None:
            waited = f", waited {at.figure('queueing_delay')}" if delay else ""
            remark = f"job completion time{_stands(at, 'jct')}{waited}{_doubt(view, at.arm)}"
            yield name, _big(jct), remark
        elif state not in ("None", "SUCCEEDED"):
            yield name, f'<span class="bad">{text(state.lower())}</span>', "state"


def _crowd_times(view: View, arm: str) -> Iterator[Card]:
    jobs = [(jct, at) for at in view.each("job", [arm]) if (jct := at.number("jct")) is not None]
    if not jobs:
        return
    where = f", {text(view.title(arm))}" if len(view.arms) > 1 else ""
    remark = f"of {len(jobs):,} jobs' completion times{_doubt(view, arm)}"
    yield f"Median{where}", _big(percentile((jct for jct, _ in jobs), 0.5)), remark
    longest_s, at = max(jobs, key=lambda job: job[0])
    yield f"Longest{where}: {text(at.name)}", _big(longest_s), remark


def _events(view: View) -> Iterator[Card]:
    """Cards of recoveries, and of blackouts: the longest of those of one name in one arm."""
    blackouts: dict[str, list[tuple[float, str, str]]] = {}
    for at in view.each("event"):
        blackout, recovery = at.numbers("blackout", "recovery")
        if blackout is not None:
            kept = next((job.value("connections_unchanged") for job in view.each("job", [at.arm])), None)
            said = view.label if kept is None else "no connection lost" if kept else "connections changed"
            where = f", {text(at.title)}" if len(view.arms) > 1 else ""
            name = f"{upper_first(_event(at))} under running jobs{where}"
            blackouts.setdefault(name, []).append(
                (blackout, said, f"{_stands(at, 'blackout')}{_doubt(view, at.arm)}")
            )
        if recovery is not None:
            job = at.subject.rpartition("job ")[2]
            if job not in view.listed(at.arm):
                continue
            name = text(f"{at.title}, {job}")
            remark = f"from “{_event(at)}” to the end of the next iteration{_stands(at, 'recovery')}"
            yield name, _big(recovery), remark + _doubt(view, at.arm)
    for name, found in blackouts.items():
        longest, remark, stands = max(found)
        what = "blackout" if len(found) == 1 else f"longest blackout of {len(found)}"
        yield name, _big(longest), f"{what}, {remark}{stands}"


def _event(at: Figures) -> str:
    """Return the event's action as HTML, for the subjects ``event NAME`` and ``event NAME job JOB``."""
    name = at.subject.removeprefix("event ").partition(" job ")[0]
    actions = at.view.first[at.arm].later
    return text(next((action.said for action in actions if action.plan.name == name), name))


def _set_ups(view: View) -> Iterator[Card]:
    """Cards of the slowest set-up of light, and of lights that met."""
    fabrics = list(view.each("fabric"))
    slowest = max(fabrics, key=lambda at: at.number("setup_p50") or 0.0, default=None)
    if slowest is not None and slowest.number("setup_p50"):
        late = slowest.figure("setup_p99")
        title = f"Set-up of light, {text(slowest.title)}"
        remark = f"median; 99 % within {late}{_stands(slowest, 'setup_p50')}"
        yield title, _big(slowest.number("setup_p50")), remark + _doubt(view, slowest.arm)
    for at in fabrics:
        collisions, overlaps = at.numbers("collisions", "receiver_overlaps")
        if collisions is not None and at.value("light_use_collisions_possible"):
            remark = f"possible here; {overlaps or 0:.0f} receiver overlaps"
            yield f"Collisions, {text(at.title)}", f"{collisions:.0f}", remark + _doubt(view, at.arm)


def _break_even(view: View) -> Iterator[Card]:
    spec = view.experiment.spec.break_even
    if spec is None:
        return
    for at in view.having("break_even"):
        where = "".join(f", {text(value)}" for value in at.point.values())
        remark = f"for a slowdown of {percent(spec.tolerance - 1, 0)}, emulated time"
        remark += f"{_stands(at, 'break_even')}; model {at.figure('break_even_predicted')}"
        yield f"Break-even set-up{where}", _big(at.number("break_even")), remark + _doubt(view, at.arm)
