"""Print an experiment and its result for a person, or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ringlight.experiments.analysis.carrying import LATE, Demand, alike
from ringlight.experiments.analysis.metrics import metrics
from ringlight.experiments.analysis.rows import Row, from_json, where
from ringlight.experiments.cli.common import echo, listing, table
from ringlight.experiments.cli.predicted import left_out, rounded, taken, time_range
from ringlight.experiments.language.job_sources import job_source
from ringlight.fabric.extension import entries
from ringlight.fabric.units import format_size, format_time


def _scale_lines(scale: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about the chosen scale: its values, the reason, and how long an emulation takes."""
    limits = ", ".join(
        f"{part} {want:.2g}"
        for part, want in scale["wants"].items()
        if part != scale["limit"]
    )
    yield (
        f"scale: time {scale['time']:g}, payload {scale['payload']:g}, frames of "
        f"{', '.join(map(str, scale['mtu_bytes']))} bytes, limited by {scale['limit']} (others ask for time: "
        f"{limits}); while all jobs send, or links are measured, that takes {scale['busy']:.2g} processors; "
        f"costs of {scale['costs']}"
    )
    takes = scale["takes_s"]
    yield (
        f"an emulation takes about {sum(takes.values()):.0f} s: {takes['bring_up']:.0f} s to build labs, "
        f"{takes['links']:.0f} s to measure links, {takes['runs']:.0f} s of runs"
    )


def show_check(document: Mapping[str, Any]) -> None:
    """Print the document of :func:`check_document` for a person."""
    arms, fabrics = (
        _counted(len(document["arms"]), "arm"),
        _counted(len(document["fabrics"]), "fabric"),
    )
    sourced = [
        (name, key, arm[key])
        for name, arm in document["arms"].items()
        for key in entries("jobs")
        if key in arm
    ]
    idle = not sourced and not any(arm["jobs"] for arm in document["arms"].values())
    runs = (
        "no jobs, so nothing to run;"
        if idle
        else f"{_counted(document['runs'], 'run')} of {arms} on"
    )
    sound = "sound as far as it was read" if document["unread"] else "sound"
    echo(f"{document['file']}: {sound}. {runs} {fabrics}.")
    jobs = [
        {
            "arm": name,
            "fabric": arm["fabric"],
            "runs": arm["runs"],
            "job": job,
            "points": arm["points"],
            **entry,
        }
        for name, arm in document["arms"].items()
        for job, entry in arm["jobs"].items()
    ]
    for line in _scale_lines(document["scale"]) if "scale" in document else ():
        echo(line)
    if jobs:
        _list_jobs(jobs)
    for line in alike([(name, job_source(key).line(of)) for name, key, of in sourced]):
        echo(line)
    points = {name: arm["points"] for name, arm in document["arms"].items()}
    for line in (*left_out(points), *taken(points)):
        echo(line)
    if unread := document["unread"]:
        counts = ", ".join(
            f"{name} ({count} of {document['arms'][name]['runs']})"
            for name, count in unread.items()
        )
        echo(
            f"runs that were counted and not read, as they take long; simulate reads all first: {counts}"
        )
    events = [
        (name, f"{event['name']}: {event['do']} {event['target']}".rstrip())
        for name, arm in document["arms"].items()
        for event in arm["events"]
    ]
    refused = [
        (name, f"not by the {backend}: {why}")
        for name, arm in document["arms"].items()
        for backend, why in arm["refused"].items()
    ]
    notes = [
        note.partition(": ")[::2]
        for fabric in document["fabrics"].values()
        for note in fabric["notes"]
    ]
    for line in (
        *alike(events),
        *alike(refused),
        *alike(notes),
        *_what_is_carried(document),
    ):
        echo(line)


def _list_jobs(jobs: Sequence[Mapping[str, Any]]) -> None:
    listing(
        jobs,
        *("arm", "fabric", "runs", "job"),
        ("ranks", lambda job: _short(job["ranks"])),
        ("does", _workload_text),
        ("iterations", lambda job: "" if "guest" in job else job["iterations"]),
        (
            "compute",
            lambda job: "" if "guest" in job else format_time(job["compute_s"]),
        ),
        ("sends", _sends),
        ("model", lambda job: time_range(job["points"], job["job"], "model")),
        ("simulated", lambda job: time_range(job["points"], job["job"], "simulated")),
    )


def _what_is_carried(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield whether this machine carries an emulation of each arm and point.

    One line covers all that it carries and one all that it does not, with the figures of the most demanding
    point.
    """
    processors = document["processors"]
    demands = {
        name: Demand(**figures)
        for arm in document["arms"].values()
        for name, figures in arm["carried"].items()
    }
    for too_much in (False, True):
        those = {
            name: demand
            for name, demand in demands.items()
            if demand.too_much(processors) == too_much
        }
        if not those:
            continue
        most = max(those, key=lambda name: (those[name].in_all, those[name].late))
        demand = those[most]
        figures = (
            f"{demand.messages_per_s:,.0f} messages/s of {format_size(demand.message_bytes)} in "
            f"{demand.frames_per_message:.3g} frames, {demand.frames_per_s:,.0f} frames/s: about "
            f"{demand.in_all:.2g} of {processors} processors ({demand.processors:.2g} to send and forward, "
            f"{demand.lab:.2g} for the lab itself)"
        )
        figures += (
            f", {100 * demand.late:.0f} % of the time is latency of steps"
            if demand.late > LATE
            else ""
        )
        which = f", the most at {most}" if len(those) > 1 else ""
        verdict = (
            "this machine is too slow: times will be longer than simulated; enlarge scale.time"
            if too_much
            else "this machine is fast enough"
        )
        yield from alike((name, f"{verdict}{which}: {figures}") for name in those)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _workload_text(job: Mapping[str, Any]) -> str:
    if "guest" in job:
        return f"{job['guest']} {job[job['guest']]}"
    return str(job["workload"]["name"] if "workload" in job else job["collective"])


def _sends(job: Mapping[str, Any]) -> str:
    """Return the size of an iteration's traffic: the gradient, or the sum over all ranks of a workload; ""
    for guests.
    """
    if "guest" in job:
        return ""
    if "workload" in job:
        return f"{format_size(job['workload']['sent_bytes'])} by all ranks"
    return f"{format_size(job['gradient_bytes'])} gradient"


def _short(ranks: Sequence[str] | int) -> str:
    if isinstance(ranks, int):
        return f"{ranks} GPUs"
    return (
        " ".join(ranks)
        if len(ranks) <= 8
        else f"{ranks[0]} … {ranks[-1]} ({len(ranks)})"
    )


def _whole_s(time_s: float) -> str:
    """Return a job's time with two decimals, or with three digits if these would hide it."""
    return f"{time_s:.2f} s" if time_s >= 0.1 else rounded(time_s)


#: Columns of the table of jobs, in order: metric, heading, how a value is written. Extensions' come next to
#: last (``Metric.column``).
_OF_JOBS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("queueing_delay", "queued", lambda v: f"{v:.2f} s"),
    ("start_up", "start-up", lambda v: f"{v:.2f} s"),
    ("jct", "JCT", _whole_s),
    ("jct_real", "stands for", lambda v: f"{v:.3g} s"),
    ("iteration", "iteration", format_time),
    ("allreduce", "all-reduce", format_time),
    ("gpu_utilisation", "GPU use", lambda v: f"{100 * v:.0f} %"),
    ("jct_predicted", "model", _whole_s),
    ("jct_simulated", "simulated", _whole_s),
    ("jct_by_phase", "by phase", lambda v: f"{v[0]:.2f} to {v[1]:.2f} s"),
    ("parameters_identical", "exact", lambda v: "yes" if v else "NO"),
)
#: More arms or points than this are not printed; they are in the report and in rows.csv.
_MOST_LINES = 40


def show_result(result: Mapping[str, Any]) -> None:
    """Jobs, comparisons and the verdict, for a person."""
    rows = from_json(result)
    _show_jobs(rows)
    _show_comparisons(rows)
    for line in result["not_compared"]:
        echo(f"Not compared: {line}.")
    for entry in result["not_run"]:
        echo(f"Left out: arm {entry['arm']}: {entry['why']}")
    for entry in result["failed"]:
        echo(f"Failed: {entry['why']}")
    if not result["complete"]:
        echo("This experiment is not complete: some of its runs are missing.")
    if result["backend"] == "simulation":
        echo("Simulated: no number here was measured, and no testbed was built.")
        for took_s in sorted(
            {row.value for row in where(rows, metric="recovery_assumed")}, key=str
        ):
            echo(
                f"A job without `recovery` continued {took_s:g} s after it lost a GPU: the default, "
                "as measured on the development machine."
            )
        return
    fidelity = result["fidelity"]
    for entry in fidelity["repeated"]:
        why = "Repeated, because other programs used the processors"
        echo(f"{why}: {entry['name']} ({entry['counts']} counts)")
    arms, verdict = fidelity["arms"], fidelity["verdict"]
    bad = [arm for arm, level in arms.items() if level == "bad"]
    if verdict == "bad":
        which = (
            "these figures"
            if len(bad) == len(arms)
            else f"the figures of {', '.join(bad)}"
        )
        echo(f"Do not believe {which}: the emulation did not hold its settings.")
    echo(f"Fidelity: {verdict}" + _by_arm(arms))
    for reason in fidelity["reasons"]:
        echo(f"  {reason['text']}")
    for why in dict.fromkeys(fidelity["not_compared"].values()):
        runs = ", ".join(
            run for run, cause in fidelity["not_compared"].items() if cause == why
        )
        echo(f"Compared with no prediction: {runs}: {why}")


def _by_arm(arms: Mapping[str, str]) -> str:
    """The arms by their verdicts, worst first, where these differ."""
    if len(set(arms.values())) < 2:
        return ""
    arms_of = {
        level: [arm for arm in arms if arms[arm] == level]
        for level in ("bad", "doubtful", "good")
    }
    return "; " + "; ".join(
        f"{level}: {', '.join(those)}" for level, those in arms_of.items() if those
    )


def _show_jobs(rows: Sequence[Row]) -> None:
    jobs: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        if (
            row.repeat is None
            and row.subject.startswith("job ")
            and row.label != "published"
        ):
            key = row.arm, _at(row), row.subject.removeprefix("job ")
            jobs.setdefault(key, {})[row.metric] = row.value
    for values in jobs.values():
        if "jct_phase_least" in values:
            values["jct_by_phase"] = values["jct_phase_least"], values["jct_phase_most"]
    columns = [*_OF_JOBS[:-1], *_of_extensions(), _OF_JOBS[-1]]
    shown = [
        of
        for of in columns
        if any(values.get(of[0]) is not None for values in jobs.values())
    ]
    lines = [
        [
            *key,
            *(
                "" if values.get(m) is None else written(values[m])
                for m, _, written in shown
            ),
        ]
        for key, values in list(jobs.items())[:_MOST_LINES]
    ]
    if lines:
        table(
            ["arm", "point", "job", *(head for _, head, _ in shown)], lines, numeric=3
        )
    if len(jobs) > _MOST_LINES:
        echo(f"… and {len(jobs) - _MOST_LINES:,} more, in rows.csv and in the report.")


def _of_extensions() -> Iterator[tuple[str, str, Callable[[Any], str]]]:
    for name, entry in metrics().items():
        if entry.column:
            seconds = entry.unit == "s"
            yield (
                name,
                entry.column,
                (lambda v: f"{v:.2f} s") if seconds else (lambda v: f"{v:.3f}"),
            )


def _show_comparisons(rows: Sequence[Row]) -> None:
    comparison_rows = [
        row
        for row in where(rows, repeat=None)
        if row.metric.endswith(("_ratio", "_reduction"))
        and not row.metric.startswith("gpu_utilisation.")
        and isinstance(row.value, int | float)
    ]
    lines = [
        [
            row.arm,
            row.subject,
            _at(row),
            row.metric,
            f"{row.value:.4f}" if row.unit == "1" else f"{row.value:.1f} {row.unit}",
            "" if row.spread is None else f"± {row.spread:.3g}",
            row.label if row.label != "published" else f"{row.label}, {row.standing}",
        ]
        for row in comparison_rows[:_MOST_LINES]
    ]
    if lines:
        table(
            ["arm", "of", "point", "metric", "value", "95 %", "label"],
            lines,
            numeric=4,
        )


def _at(row: Row) -> str:
    """Text of a row's point in a sweep."""
    return ", ".join(f"{path}={value}" for path, value in row.point.items())
