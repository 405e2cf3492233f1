"""What the run is, what it found, and its most important figures as cards."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.report.page import NO_RESULT, hero, text
from experiments.report.report import Draw
from experiments.report.view import Compared, View, job_of
from experiments.report.words import amount, apart, called, percent, quoted, seconds, upper_first

ORDER = 0
NEEDS: tuple[str, ...] = ()
#: More cards than these would be a table, and there is one.
_MOST_CARDS = 6
#: A ratio so near to 1 is none.
_ALIKE = 0.01
Card = tuple[str, str, str]


def render(view: View, draw: Draw) -> str:
    spec, verdict = view.experiment.spec, view.fidelity["verdict"]
    headline = NO_RESULT if verdict == "bad" else _headline(view)
    items = "".join(f"<li>{name} <b>{text(value)}</b></li>" for name, value in _chips(view))
    if not view.simulated:
        items += f'<li>fidelity <b class="{verdict}">{verdict}</b></li>'
    partial = "" if view.complete else '<p class="bad"><b>This run is not complete.</b></p>'
    return (
        f'<header><p class="kicker">Ringlight run {text(view.name)}</p><h1>{text(headline)}</h1>'
        f'<p class="lead">{text(spec.description)}</p>{partial}<ul class="chips">{items}</ul></header>'
        f"{hero(list(_cards(view))[:_MOST_CARDS])}"
    )


def _chips(view: View) -> Iterator[tuple[str, object]]:
    yield "workers", _workers(view)
    settings = {plan.setting.name: plan.setting for plan in view.experiment.plans}
    gpus = {len(setting.fabric.gpus) for setting in settings.values()}
    yield "GPUs", " or ".join(map(str, sorted(gpus)))
    if len(settings) > 1:
        yield "fabrics", len(settings)
    else:
        (setting,) = settings.values()
        for what, found in (
            ("packet switches", setting.fabric.packet_switches),
            ("optical switches", setting.fabric.optical_switches),
        ):
            if found:
                yield what, len(found)
    if len(view.arms) > 1:
        yield "arms", len(view.arms)
    if len(view.runs) != len(view.arms):
        yield "runs", f"{len(view.runs):,}"
    scales = {plan.setting.scale for plan in view.experiment.plans}
    yield "time × ", ", ".join(f"{time:g}" for time in sorted({scale.time for scale in scales}))
    yield "payload ÷ ", ", ".join(f"{size:g}" for size in sorted({scale.payload for scale in scales}))


def _workers(view: View) -> str:
    if view.simulated:
        return "none, simulated in virtual time"
    return {
        "docker": "Docker containers",
        "namespace": "network namespaces, no containers",
    }.get(str(view.environment.get("runtime")), "emulated")


# The headline.


def _headline(view: View) -> str:
    if view.experiment.spec.break_even is not None:
        return "Up to which set-up time does switching light per flow pay?"
    # The file's first comparison is the one that it is about.
    first = next(_ratios(view), None)
    if first is not None:
        return _compared(view, *first)
    failed = [job for arm in view.arms for job, state in _states(view, arm) if state == "FAILED"]
    if failed:
        return f"{view.experiment.spec.name}: {len(failed)} of {_jobs(view)} jobs failed"
    return f"{upper_first(view.experiment.spec.name.replace('-', ' '))}: {_jobs(view)} jobs"


def _ratios(view: View) -> Iterator[tuple[Compared, str, float]]:
    """Each comparison's first metric."""
    for spec in view.experiment.spec.compare:
        for one in view.compared(spec):
            for subject in view.compared_subjects(one):
                row = view.of_comparison(one, subject, f"{spec.metrics[0]}_ratio")
                if row is not None and isinstance(row.value, float | int):
                    yield one, subject, float(row.value)


def _compared(view: View, one: Compared, subject: str, ratio: float) -> str:
    if one.arm not in view.fixed:
        return _over_points(view, one, subject)
    ours, base = apart(view.title(one.arm), view.title(one.spec.baseline))
    alone = base == view.title(one.spec.baseline)
    base, metric = quoted(base) if alone else base, called(one.spec.metrics[0])
    if abs(ratio - 1) < _ALIKE:
        return f"{upper_first(ours)}: {metric} as with {base}, to within 1 %"
    row = view.row(one.arm, subject, one.spec.metrics[0], one.point)
    if row is not None and row.unit == "s" and ratio < 1:
        return f"{upper_first(ours)}: {1 / ratio:.{_digits(1 / ratio)}f} times as fast as {base}"
    return f"{upper_first(ours)}: {metric} {ratio:.{_digits(ratio)}f} times that of {base}"


def _over_points(view: View, one: Compared, subject: str) -> str:
    metric = one.spec.metrics[0]
    rows = [view.of_comparison(other, subject, f"{metric}_ratio") for other in view.compared(one.spec)]
    values = [
        r.value for r in rows if r is not None and r.arm == one.arm and isinstance(r.value, float | int)
    ]
    base = quoted(view.title(one.spec.baseline))
    least, most = min(values), max(values)
    return (
        f"{upper_first(view.title(one.arm))}: {called(metric)} {least:.{_digits(least)}f} to "
        f"{most:.{_digits(most)}f} times that of {base}"
    )


def _digits(ratio: float) -> int:
    return 1 if ratio >= 2 else 2 if ratio >= 1.1 else 3


def _states(view: View, arm: str) -> list[tuple[str, str]]:
    return [(job_of(s), str(view.value(arm, s, "state"))) for s in view.subjects(arm, "job")]


def _jobs(view: View) -> int:
    return sum(len(run.jobs) for run in view.runs)


# Cards.


def _cards(view: View) -> Iterator[Card]:
    compared = [
        _card_of(view, one, subject, ratio) for one, subject, ratio in _ratios(view) if one.arm in view.fixed
    ]
    yield from compared
    if not compared:
        yield from _times(view)
    yield from _events(view)
    yield from _set_ups(view)
    yield from _break_even(view)


def _card_of(view: View, one: Compared, subject: str, ratio: float) -> Card:
    metric, what = one.spec.metrics[0], _what(view, one, subject)
    row = view.of_comparison(one, subject, f"{metric}_ratio")
    seconds_saved = row is not None and ratio < 0.9
    name = f"{metric}_reduction" if seconds_saved else f"{metric}_ratio"
    mine, paper = view.of_comparison(one, subject, name), view.of_comparison(one, subject, name, "published")
    assert mine is not None
    assert isinstance(mine.value, float | int)
    shown = f"−{mine.value:.1f} <small>%</small>" if seconds_saved else f"{mine.value:.4f}"
    base = text(quoted(view.title(one.spec.baseline)))
    remarks = [f"{called(metric)} saved" if seconds_saved else f"times the {called(metric)} of {base}"]
    if mine.spread is not None:
        remarks.append(f"± {mine.spread:.{1 if seconds_saved else 4}f}")
    if paper is not None:
        remarks.append(f"paper {_plain(paper.value, seconds_saved)} ({paper.standing})")
    model = _model(view, one, subject)
    if model is not None:
        remarks.append(f"model {_plain(100 * (1 - model) if seconds_saved else model, seconds_saved)}")
    kept = view.of_comparison(one, subject, "within_limit")
    if kept is not None:
        word = "kept" if kept.value else '<b class="bad">not kept</b>'
        remarks.append(f"limit {one.spec.limit:g} {word}")
    return what, shown, ", ".join(remarks)


def _what(view: View, one: Compared, subject: str) -> str:
    title = view.title(one.arm)
    others = len(view.compared_subjects(one)) > 1
    return text(f"{title}, {subject}" if others else title)


def _plain(value: object, in_percent: bool) -> str:
    return f"{value:.1f} %" if in_percent else f"{value:.4f}"


def _model(view: View, one: Compared, subject: str) -> float | None:
    """The ratio by the model."""
    return model_ratio(view, one, subject, one.spec.metrics[0])


def model_ratio(view: View, one: Compared, subject: str, metric: str) -> float | None:
    """Of an arm's figure by the model over its baseline's, where the models know both."""

    def said(arm: str, point: object) -> float | None:
        names = (f"{metric}_predicted_with_setup", f"{metric}_predicted")
        found = (view.number(arm, subject, name, point) for name in names)  # type: ignore[arg-type]
        return next((value for value in found if value is not None), None)

    mine, base = said(one.arm, one.point), said(one.spec.baseline, view.baseline_point(one))
    return mine / base if mine is not None and base else None


def _times(view: View) -> Iterator[Card]:
    """Without a comparison: how long jobs took."""
    for arm in view.fixed:
        for subject in view.subjects(arm, "job"):
            row = view.row(arm, subject, "jct")
            state = view.value(arm, subject, "state")
            name = f"{job_of(subject)}, {view.title(arm)}" if len(view.arms) > 1 else job_of(subject)
            if row is not None:
                delay = view.number(arm, subject, "queueing_delay")
                waited = f", waited {seconds(delay)}" if delay else ""
                yield text(name), _big(amount(row.value, row.unit)), f"job completion time{waited}"
            elif state not in (None, "SUCCEEDED"):
                yield text(name), f'<span class="bad">{text(str(state).lower())}</span>', "state"


def _big(shown: str) -> str:
    figure, _, unit = shown.partition("\u00a0")
    return f"{figure} <small>{unit}</small>"


def _events(view: View) -> Iterator[Card]:
    """Blackouts and recoveries."""
    for arm in view.fixed:
        for subject in view.subjects(arm, "event"):
            blackout = view.number(arm, subject, "blackout")
            if blackout is not None:
                kept = view.value(arm, _first_job(view, arm), "connections_unchanged")
                said = {True: "no connection lost", False: "connections changed", None: view.label}[kept]
                yield "Light moved under running jobs", _big(seconds(blackout)), f"blackout, {said}"
            recovery = view.number(arm, subject, "recovery")
            if recovery is not None:
                job = subject.rpartition("job ")[2]
                name = f"{text(view.title(arm))}, {text(job)}"
                yield name, _big(seconds(recovery)), "from the fault to the end of the next iteration"


def _first_job(view: View, arm: str) -> str:
    return next(iter(view.subjects(arm, "job")), "")


def _set_ups(view: View) -> Iterator[Card]:
    slowest: Card | None = None
    most = 0.0
    for arm in view.fixed:
        for subject in view.subjects(arm, "fabric"):
            median, late = (view.number(arm, subject, f"setup_{q}") for q in ("p50", "p99"))
            if median is not None and late is not None and median > most:
                most = median
                what = f"Set-up of light, {text(view.title(arm))}"
                slowest = (what, _big(seconds(median)), f"median; 99 % within {seconds(late)}")
    if slowest is not None:
        yield slowest
    for arm in view.fixed:
        for subject in view.subjects(arm, "fabric"):
            collisions = view.number(arm, subject, "collisions")
            if collisions is not None and view.value(arm, subject, "light_use_collisions_possible"):
                overlaps = view.number(arm, subject, "receiver_overlaps")
                yield (
                    f"Collisions, {text(view.title(arm))}",
                    f"{collisions:.0f}",
                    f"possible here; {overlaps or 0:.0f} receiver overlaps",
                )


def _break_even(view: View) -> Iterator[Card]:
    spec = view.experiment.spec.break_even
    if spec is None:
        return
    for row in view.rows:
        if row.metric == "break_even" and row.repeat is None and isinstance(row.value, float):
            at = ", ".join(f"{value}" for value in row.point.values())
            model = view.number(row.arm, row.subject, "break_even_predicted", row.point)
            yield (
                f"Break-even set-up{f', {text(at)}' if at else ''}",
                _big(seconds(row.value)),
                f"for a slowdown of {percent(spec.tolerance - 1, 0)}, emulated time; model {seconds(model)}",
            )
