"""Report what the run is, what it found, and its most important figures as cards."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ringlight.experiments.analysis.latency import latency_words
from ringlight.experiments.analysis.statistics import percentile
from ringlight.experiments.report.columns import real
from ringlight.experiments.report.page import NO_RESULT, hero, mark, text
from ringlight.experiments.report.page import header as head_of
from ringlight.experiments.report.sections import DOUBTS, section
from ringlight.experiments.report.view import MOST_JOBS, Compared, Draw, Figures, View
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
#: Times of work. An arm with half of such a time is twice as fast; with half of a waiting time it is not.
_WORK = ("jct", "iteration", "allreduce", "exchange")
_WORKERS = {
    "docker": "Docker containers",
    "namespace": "network namespaces, no containers",
}
Card = tuple[str, str, str]


@section(0)
def header(view: View, draw: Draw) -> str:
    """Return the head of the page as HTML: what the run is, what it found, and its most important figures
    as cards."""
    headline = _headline(view)
    lead = view.experiment.spec.description
    links = {} if view.simulated else {"fidelity": DOUBTS}
    top = head_of(
        f"Ringlight run {view.name}", headline, lead, _chips(view), view.complete, links
    )
    return top + hero(list(itertools.islice(_cards(view), _MOST_CARDS)))


def _chips(view: View) -> Iterator[tuple[str, object]]:
    emulated = _WORKERS.get(str(view.environment.get("runtime")), "emulated")
    yield "workers", "none, simulated in virtual time" if view.simulated else emulated
    fabrics = [setting.fabric for setting in view.settings]
    yield (
        "GPUs",
        " or ".join(map(str, sorted({len(fabric.gpus) for fabric in fabrics}))),
    )
    if len(fabrics) > 1:
        yield "fabrics", len(fabrics)
    else:
        kinds = {
            "packet": fabrics[0].packet_switches,
            "optical": fabrics[0].optical_switches,
        }
        yield from (
            (f"{kind} switches", len(switches))
            for kind, switches in kinds.items()
            if switches
        )
    if len(view.arms) > 1:
        yield "arms", len(view.arms)
    if len(view.runs) != len(view.arms):
        yield "runs", f"{len(view.runs):,}"
    scales = {plan.setting.scale for plan in view.experiment.plans}
    yield (
        "time × ",
        ", ".join(f"{time:g}" for time in sorted({scale.time for scale in scales})),
    )
    yield (
        "payload ÷ ",
        ", ".join(f"{size:g}" for size in sorted({scale.payload for scale in scales})),
    )
    if view.simulated:
        yield (
            "latency of a transfer",
            latency_words(view.experiment.plans, view.environment),
        )
    else:
        verdict, arms = view.fidelity["verdict"], view.fidelity.get("arms", {})
        those = [arm for arm in arms if arms[arm] == verdict]
        some = (
            f", {len(those)} of {len(arms)} arms" if 0 < len(those) < len(arms) else ""
        )
        yield "fidelity", f"{verdict}{some}"


def _verdict(view: View, *arms: str) -> str:
    """Return the worst verdict on some arms; ``simulated`` if there is no verdict."""
    of_arms = view.fidelity.get("arms", {})
    verdicts = {of_arms.get(arm, view.fidelity["verdict"]) for arm in arms}
    return next(
        (verdict for verdict in ("bad", "doubtful") if verdict in verdicts), "good"
    )


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
    spec, jobs = (
        view.experiment.spec,
        [job for run in view.runs for job in run.jobs.values()],
    )
    if spec.break_even is not None:
        return "Up to which set-up time does switching light per flow pay?"
    if spec.crossover is not None:
        return f"Where does {view.title(spec.crossover.arms[0])} win, and where does it lose?"
    # The file's first comparison is the one that it is about, where it holds.
    ratios = list(_first_ratios(view))
    for verdict, template in (("good", "{}"), ("doubtful", "{}; doubtful")):
        for pair, ratio in ratios:
            if _verdict(view, pair.arm, pair.base.arm) == verdict:
                return template.format(_compared(view, pair, ratio))
    if len(believed) < len(ran):
        return f"{upper_first(spec.name.replace('-', ' '))}: {len(believed)} of {len(ran)} arms can be believed"
    if failed := sum(job.state == "FAILED" for job in jobs):
        return f"{spec.name}: {failed} of {len(jobs)} jobs failed"
    return f"{upper_first(spec.name.replace('-', ' '))}: {len(jobs)} job{'' if len(jobs) == 1 else 's'}"


def _first_ratios(view: View) -> Iterator[tuple[Compared, float]]:
    """Yield each comparison with the ratio of its first metric."""
    for pair in view.comparisons:
        ratio = pair.ratio(pair.spec.metrics[0])
        if ratio is not None:
            yield pair, ratio


def _compared(view: View, pair: Compared, ratio: float) -> str:
    metric, title, base = pair.spec.metrics[0], pair.title, pair.base.title
    if pair.arm not in view.fixed:
        of_arm = [
            r
            for other, r in _first_ratios(view)
            if other.spec == pair.spec and other.arm == pair.arm
        ]
        between = " to ".join(_times(end) for end in (min(of_arm), max(of_arm)))
        return f"{upper_first(title)}: {called(metric)} {between} times that of {quoted(base)}"
    ours, theirs = apart(title, base)
    theirs = quoted(theirs) if theirs == base else theirs
    if metric == "jct" and pair.phases_overlap:
        sentence = f"{called(metric)} not told apart from that of {theirs}, as more depends on when jobs begin"
    elif abs(ratio - 1) < _ALIKE:
        sentence = f"{called(metric)} as with {theirs}, to within 1 %"
    elif metric in _WORK and ratio < 1:
        sentence = f"{_times(1 / ratio)} times as fast as {theirs}"
    else:
        sentence = f"{called(metric)} {_times(ratio)} times that of {theirs}"
    return f"{upper_first(ours)}: {sentence}"


def _times(ratio: float) -> str:
    return f"{ratio:.{1 if ratio >= 2 else 2 if ratio >= 1.1 else 3}f}"


# Cards.


def _cards(view: View) -> Iterator[Card]:
    compared = [
        _card_of(view, *pair)
        for pair in _first_ratios(view)
        if pair[0].arm in view.fixed
    ]
    yield from compared or _job_times(view)
    yield from _events(view)
    yield from _set_ups(view)
    yield from _break_even(view)


def _card_of(view: View, pair: Compared, ratio: float) -> Card:
    metric, saved = (
        pair.spec.metrics[0],
        ratio < 0.9 and pair.number(f"{pair.spec.metrics[0]}_reduction"),
    )
    name = f"{metric}_reduction" if saved else f"{metric}_ratio"
    mine, paper, model = (
        pair.row(name),
        pair.row(name, "published"),
        pair.model_ratio(metric),
    )

    def plain(value: object, digits: int = 1 if saved else 4) -> str:
        return f"{value:.{digits}f}{' %' if saved else ''}"

    base = text(quoted(pair.base.title))
    remarks = [
        f"{called(metric)} saved" if saved else f"times the {called(metric)} of {base}"
    ]
    if mine is not None and mine.spread is not None:
        remarks.append(f"± {plain(mine.spread).removesuffix(' %')}")
    if paper is not None:
        remarks.append(f"paper {plain(paper.value)} ({paper.standing})")
    if model is not None:
        remarks.append(f"model {plain(100 * (1 - model) if saved else model)}")
    kept = pair.value("within_limit")
    if metric == "jct" and pair.phases_overlap:
        remarks.append("more depends on when jobs begin")
    if kept is not None:
        remarks.append(
            f"limit {pair.spec.limit:g} {'kept' if kept else mark('bad', 'not kept')}"
        )
    doubt = _doubt(view, pair.arm, pair.base.arm)
    of_arm = [
        other
        for other in view.comparisons
        if other.spec is pair.spec and other.arm == pair.arm
    ]
    what = (
        pair.title
        if len({other.subject for other in of_arm}) == 1
        else f"{pair.title}, {pair.subject}"
    )
    return (
        text(what),
        f"−{saved:.1f} <small>%</small>" if saved else plain(ratio),
        ", ".join(remarks) + doubt,
    )


def _big(value: float | None) -> str:
    figure, _, unit = seconds(value).partition(HARD_SPACE)
    return f"{figure} <small>{unit}</small>"


def _stands(subject: Figures, metric: str) -> str:
    """Return the real time that a card's figure stands for; empty if time is not scaled."""
    real_s = real(subject, metric)
    return "" if real_s is None else f", stands for {seconds(real_s)}"


def _job_times(view: View) -> Iterator[Card]:
    """Times of jobs, for a report without a comparison: of all, or how those of many are spread."""
    for arm in view.fixed:
        if len(view.first[arm].jobs) > MOST_JOBS:
            yield from _crowd_times(view, arm)
    for job in (
        job for job in view.each("job") if len(view.first[job.arm].jobs) <= MOST_JOBS
    ):
        jct, delay = job.numbers("jct", "queueing_delay")
        state = str(job.value("state"))
        name = text(f"{job.name}, {job.title}" if len(view.arms) > 1 else job.name)
        if jct is not None:
            waited = f", waited {job.figure('queueing_delay')}" if delay else ""
            remark = f"job completion time{_stands(job, 'jct')}{waited}{_doubt(view, job.arm)}"
            yield name, _big(jct), remark
        elif state not in ("None", "SUCCEEDED"):
            yield name, f'<span class="bad">{text(state.lower())}</span>', "state"


def _crowd_times(view: View, arm: str) -> Iterator[Card]:
    jobs = [
        (jct, timed)
        for timed in view.each("job", [arm])
        if (jct := timed.number("jct")) is not None
    ]
    if not jobs:
        return
    where = f", {text(view.title(arm))}" if len(view.arms) > 1 else ""
    remark = f"of {len(jobs):,} jobs' completion times{_doubt(view, arm)}"
    yield f"Median{where}", _big(percentile((jct for jct, _ in jobs), 0.5)), remark
    longest_s, timed = max(jobs, key=lambda job: job[0])
    yield f"Longest{where}: {text(timed.name)}", _big(longest_s), remark


def _events(view: View) -> Iterator[Card]:
    """Yield cards of recoveries, and of blackouts: the longest of those of one name in one arm."""
    blackouts: dict[str, list[tuple[float, str, str]]] = {}
    for event in view.each("event"):
        blackout, recovery = event.numbers("blackout", "recovery")
        if blackout is not None:
            kept = next(
                (
                    job.value("connections_unchanged")
                    for job in view.each("job", [event.arm])
                ),
                None,
            )
            words = (
                view.label
                if kept is None
                else "no connection lost"
                if kept
                else "connections changed"
            )
            where = f", {text(event.title)}" if len(view.arms) > 1 else ""
            name = f"{upper_first(_event(event))} under running jobs{where}"
            blackouts.setdefault(name, []).append(
                (
                    blackout,
                    words,
                    f"{_stands(event, 'blackout')}{_doubt(view, event.arm)}",
                )
            )
        if recovery is not None:
            job = event.subject.rpartition("job ")[2]
            if job not in view.listed(event.arm):
                continue
            name = text(f"{event.title}, {job}")
            remark = f"from “{_event(event)}” to the end of the next iteration{_stands(event, 'recovery')}"
            yield name, _big(recovery), remark + _doubt(view, event.arm)
    for name, values in blackouts.items():
        longest, remark, stands = max(values)
        what = "blackout" if len(values) == 1 else f"longest blackout of {len(values)}"
        yield name, _big(longest), f"{what}, {remark}{stands}"


def _event(event: Figures) -> str:
    """Return the event's action as HTML, for the subjects ``event NAME`` and ``event NAME job JOB``."""
    name = event.subject.removeprefix("event ").partition(" job ")[0]
    actions = event.view.first[event.arm].later
    return text(
        next((action.sentence for action in actions if action.plan.name == name), name)
    )


def _set_ups(view: View) -> Iterator[Card]:
    """Yield cards of the slowest set-up of light, and of lights that met."""
    fabrics = list(view.each("fabric"))
    slowest = max(
        fabrics, key=lambda subject: subject.number("setup_p50") or 0.0, default=None
    )
    if slowest is not None and slowest.number("setup_p50"):
        late = slowest.figure("setup_p99")
        title = f"Set-up of light, {text(slowest.title)}"
        remark = f"median; 99 % within {late}{_stands(slowest, 'setup_p50')}"
        yield (
            title,
            _big(slowest.number("setup_p50")),
            remark + _doubt(view, slowest.arm),
        )
    for subject in fabrics:
        collisions, overlaps = subject.numbers("collisions", "receiver_overlaps")
        if collisions is not None and subject.value("light_use_collisions_possible"):
            remark = f"possible here; {overlaps or 0:.0f} receiver overlaps"
            yield (
                f"Collisions, {text(subject.title)}",
                f"{collisions:.0f}",
                remark + _doubt(view, subject.arm),
            )


def _break_even(view: View) -> Iterator[Card]:
    spec = view.experiment.spec.break_even
    if spec is None:
        return
    for subject in view.having("break_even"):
        where = "".join(f", {text(value)}" for value in subject.point.values())
        remark = f"for a slowdown of {percent(spec.tolerance - 1, 0)}, emulated time"
        remark += f"{_stands(subject, 'break_even')}; model {subject.figure('break_even_predicted')}"
        yield (
            f"Break-even set-up{where}",
            _big(subject.number("break_even")),
            remark + _doubt(view, subject.arm),
        )
