"""Report whether the testbed can be believed: its links, timers and processors against their settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ringlight.experiments.analysis.differences import FIGURES
from ringlight.experiments.analysis.explanations import REACH_PERCENT, signed
from ringlight.experiments.analysis.machine_faults import LINK_ERROR
from ringlight.experiments.language.plan import Scale
from ringlight.experiments.record.lab_records import process_called
from ringlight.experiments.report.columns import seconds_and_real
from ringlight.experiments.report.page import folded, listing, mark, table_of, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, View
from ringlight.experiments.report.words import percent
from ringlight.fabric.units import format_rate

_MEANING = {
    "good": "The emulation kept its settings.",
    "doubtful": "Read the figures with care: the emulation strayed from its settings.",
    "bad": "Do not believe the figures: the emulation did not hold its settings.",
}
#: More links than these are folded away.
_MOST_LINKS = 24
Entry = Mapping[str, Any]


@section(90, "Can this be believed?")
def fidelity(view: View, draw: Draw) -> str:
    """Return HTML that shows the verdict on measured runs and its grounds; empty without a verdict."""
    document, verdict = view.fidelity, view.fidelity["verdict"]
    if verdict not in _MEANING:
        return ""
    return (
        f'<div class="verdict {verdict}"><b>{verdict.capitalize()}{_of_which(view)}.</b> '
        f"<span>{_MEANING[verdict]}</span>"
        f"{listing(text(reason['text']) for reason in document['reasons'])}</div>"
        f"{_by_arm(view)}{_beside_simulation(document.get('simulated', {}), view.scale)}"
        f"{_not_compared(document.get('not_compared', {}))}"
        f"{_repeated(document.get('repeated', ()))}"
        f"{_deaths(document.get('processes_restarted', {}))}"
        f"{folded('Links, timers and processors', _measured(document))}"
    )


def _of_which(view: View) -> str:
    """Return the arms that have the verdict, if not all have it."""
    verdict, arms = view.fidelity["verdict"], view.fidelity.get("arms", {})
    those = [view.title(arm) for arm in arms if arms[arm] == verdict]
    return f": {text(', '.join(those))}" if 0 < len(those) < len(arms) else ""


def _measured(verdict: Entry) -> str:
    return (
        "<h3>Links against their settings</h3>"
        "<p>TCP payload received while all links of a kind were full at once, measured. Packet headers take "
        "0.7 % of frames of 9,000 bytes and 1.6 % of frames of 4,000; a miss above 5 % is doubtful, above 10 % "
        f"bad.</p>{_links(verdict.get('links', ()))}"
        f"<h3>Timers and processors</h3><p>The timers that stand for GPU computation {_timers(verdict)}.</p>"
        f"{_processors(verdict)}"
        "<p>Shares of all processors, measured. Stolen: given to other machines by the hypervisor. Others: used "
        "by processes outside of the lab. Either can make a link slow or a timer late.</p>"
    )


def _by_arm(view: View) -> str:
    """Return each arm's verdict, if the verdicts differ."""
    arms = view.fidelity.get("arms", {})
    if len(set(arms.values())) < 2:
        return ""
    columns = [
        ("arm", lambda arm: text(view.title(arm))),
        ("verdict", lambda arm: mark(arms[arm], arms[arm])),
        (
            "reasons",
            lambda arm: str(
                sum(arm in reason["arms"] for reason in view.fidelity["reasons"])
            ),
        ),
    ]
    return f"<h3>Arm by arm</h3>{table_of(list(arms), columns, 2)}"


def _beside_simulation(of_runs: Mapping[str, Mapping[str, Entry]], scale: Scale) -> str:
    """Return each job's figures next to those of the simulation of its run."""
    jobs = [
        {"run": run, "job": job, **of}
        for run, each in of_runs.items()
        for job, of in each.items()
    ]
    if not jobs:
        return ""
    columns: list[tuple[str, Callable[[Entry], str]]] = [
        ("run", lambda entry: text(entry["run"])),
        ("job", lambda entry: text(entry["job"])),
    ]
    for figure, what in FIGURES.items():
        columns += [
            (what, _side(figure, "emulated", scale)),
            ("simulated", _side(figure, "simulated", scale)),
            ("difference", _difference(figure)),
        ]
    worst = max(
        abs(entry[figure]["difference_percent"])
        for entry in jobs
        for figure in FIGURES
        if figure in entry
    )
    about = (
        "<p>Means over ranks and iterations, emulated (measured) and in a simulation of the same run; "
        "differences are of the simulated figure from the measured one.</p>"
    )
    title = f"Beside a simulation of the same runs: at most {worst:.1f} % apart"
    return folded(title, about + table_of(jobs, columns, 2))


def _side(figure: str, side: str, scale: Scale) -> Callable[[Entry], str]:
    return lambda entry: (
        seconds_and_real(entry[figure][side], scale) if figure in entry else ""
    )


def _difference(figure: str) -> Callable[[Entry], str]:
    def cell(entry: Entry) -> str:
        if figure not in entry:
            return ""
        percents = entry[figure]["difference_percent"]
        words = f"{signed(percents)} %"
        return (
            mark("doubtful", words) if abs(percents) > REACH_PERCENT[figure] else words
        )

    return cell


def _not_compared(reasons: Mapping[str, str]) -> str:
    """Return the runs without a compared prediction, and the reasons."""
    if not reasons:
        return ""
    lines = (f"{run}: {why}" for run, why in reasons.items())
    return f"<p>Compared with no prediction:</p>{listing(map(text, lines))}"


def _share(key: str, digits: int = 1) -> Callable[[Entry], str]:
    return lambda entry: (
        "not measured" if entry.get(key) is None else percent(entry[key], digits)
    )


def _links(links: Sequence[Entry]) -> str:
    shown = table_of(
        links,
        [
            ("link", lambda link: text(link["link"])),
            ("direction", lambda link: text(link["direction"])),
            ("set", lambda link: format_rate(link["set_bps"])),
            ("measured", lambda link: format_rate(link["measured_bps"])),
            ("ratio", _share("ratio")),
            ("stolen CPU", _share("stolen")),
            ("others' CPU", _share("others")),
        ],
        2,
    )
    if len(links) <= _MOST_LINKS:
        return shown
    ratios = sorted(100 * link["ratio"] for link in links)
    median = ratios[len(ratios) // 2]
    between = f"{ratios[0]:.1f} to {ratios[-1]:.1f} % of their settings, median {median:.1f} %"
    return folded(f"{len(links)} rates, {between}", shown)


def _timers(verdict: Entry) -> str:
    timer = verdict.get("timer") or {}
    if timer.get("median_s") is None:
        return "were not measured"
    median, late, worst = (1000 * timer[key] for key in ("median_s", "p99_s", "max_s"))
    return (
        f"woke {median:.2f} ms late at the median, {late:.2f} ms at the 99th percentile "
        f"({percent(timer['p99_share_of_compute'])} of the time of an iteration's compute), "
        f"{worst:.1f} ms at worst"
    )


def _processors(verdict: Entry) -> str:
    missing = verdict.get("samples_missing") or {}
    idle = {how: f"{how}_idle" for how in ("mean", "p95")}
    runs = [
        {
            "run": name,
            "missing": missing.get(name, 0.0),
            **{idle[how]: 1 - busy[f"{how}_busy"] for how in idle},
            **busy,
        }
        for name, busy in (verdict.get("cpu") or {}).items()
    ]
    shares = [
        (f"{what} CPU, {words}", _share(f"{how}_{key}", digits))
        for what, key, digits in (
            ("idle", "idle", 0),
            ("stolen", "stolen", 1),
            ("others'", "others", 1),
        )
        for how, words in (("mean", "mean"), ("p95", "worst 5 %"))
    ]
    last = [("samples missing", _share("missing"))] if missing else []
    return table_of(runs, [("run", lambda run: text(run["run"])), *shares, *last])


def _repeated(entries: Sequence[Entry]) -> str:
    """Return the runs and links that were repeated automatically: the reason, both figures, and which
    counts."""
    shown = table_of(
        entries,
        [
            ("what", lambda entry: text(entry["name"])),
            ("why", _why),
            ("first", lambda entry: "; ".join(_attempt(entry["first"]))),
            ("second", lambda entry: "; ".join(_attempt(entry["second"]))),
            ("counts", _counts),
        ],
        9,
    )
    if not shown:
        return ""
    return (
        "<h3>Repeated</h3><p>Other programs, or the hypervisor, used the processors, and the results showed it. "
        "The attempt with the smaller load of other programs counts, whatever its figures. After a disturbed "
        "second attempt no further run was repeated. Links that missed their setting by less than "
        f"{percent(LINK_ERROR[1], 0)} on an otherwise idle machine were filled again, because one time-out "
        f"of TCP takes that much of a short test; each link's better figure counts.</p>{shown}"
    )


def _deaths(of_runs: Mapping[str, Sequence[Entry]]) -> str:
    """Return the processes of the lab that died, planned or not."""
    shown = table_of(
        [{"run": run, **death} for run, deaths in of_runs.items() for death in deaths],
        [
            ("run", lambda death: text(death["run"])),
            (
                "process",
                lambda death: text(process_called(death["kind"], death["name"])),
            ),
            ("how it ended", lambda death: text(death["how"])),
            ("an event of the run", lambda death: "yes" if death["planned"] else "no"),
            (
                "away",
                lambda death: (
                    "not back"
                    if death["away_s"] is None
                    else f"{death['away_s']:.1f} s"
                ),
            ),
        ],
        4,
    )
    return f"<h3>Processes that died</h3>{shown}" if shown else ""


def _why(entry: Entry) -> str:
    first, *more = entry["reasons"]
    return text(first["text"]) + (f" (and {len(more)} more)" if more else "")


def _counts(entry: Entry) -> str:
    if entry["counts"] == "better":
        return "each link's better"
    return (
        "first" if entry["counts"] in ("first", entry["first"].get("run")) else "second"
    )


def _attempt(attempt: Entry) -> Iterator[str]:
    times = attempt.get("jct_s") or attempt.get("completion_s")
    if times:
        yield ", ".join(f"{text(job)} {time:.1f} s" for job, time in times.items())
    elif "least" in attempt:
        yield f"{percent(attempt['least'])} to {percent(attempt['most'])} of the settings"
    if "taken" in attempt:
        yield f"{percent(attempt['taken'], 0)} of the processors taken"
