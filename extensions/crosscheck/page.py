"""The page of a cross-check: how far the simulation is from the emulation, drawn and said."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ringlight.experiments.analysis.explanations import JUDGED, signed
from ringlight.experiments.language.expand import Experiment
from ringlight.experiments.report.charts import chart, key, legend, named_rows, sheet
from ringlight.experiments.report.drawing import LIGHT, PALETTE, QUIET
from ringlight.experiments.report.page import (
    NO_RESULT,
    assumptions,
    drawing,
    header,
    hero,
    listing,
    mark,
    page,
    quiet,
    table_of,
    tag,
    text,
)
from ringlight.extensions.crosscheck.spread_page import spread_figure, spread_parts

_EMULATED, _SIMULATED = PALETTE[0], PALETTE[1]
_DASHED = (0, (4, 2))
#: Iteration series drawn at most.
_SERIES = 12
_SAID = dict(zip(JUDGED, ("an iteration", "an all-reduce"), strict=True))
Entry = Mapping[str, Any]


def title_of(entry: Entry) -> str:
    """Return the title of a run on the page."""
    point = ", ".join(
        f"{path.rpartition('.')[2]} {value}" for path, value in entry["point"].items()
    )
    return f"{entry['arm']}, {point}" if point else str(entry["arm"])


def render(experiment: Experiment, result: Mapping[str, Any], folder: Path) -> str:
    """Return the page of an object of ``crosscheck.json``.

    The figures of the page are also saved in ``folder``, which is created if absent.
    """
    several = len({entry["job"] for entry in result["entries"]}) > 1
    entries = [
        {**entry, "label": title_of(entry) + (f": {entry['job']}" if several else "")}
        for entry in result["entries"]
    ]
    blind = "blind" in result
    if blind:
        # The furthest off first, as there may be hundreds.
        entries.sort(key=lambda entry: -abs(entry["allreduce_s"]["difference_percent"]))
    with drawing(folder, png=True) as draw:
        if blind:
            caption = "Each job's difference, by kind of fabric. The band is the limit."
            apart = draw(
                "spread", caption, spread_figure, entries, result["limit_percent"]
            )
        else:
            caption = (
                "How much longer (right) or shorter (left) an iteration is simulated than emulated. The band "
                "is the limit. Filled: iteration; ring: all-reduce alone."
            )
            apart = draw(
                "differences", caption, _differences, entries, result["limit_percent"]
            )
        some = f" The first {_SERIES} jobs." if len(entries) > _SERIES else ""
        caption = "Every iteration's duration, on its slowest rank: emulated (measured) and simulated."
        each = draw("iterations", caption + some, _series, entries[:_SERIES])
    parts = [
        _header(experiment, result),
        _hero(entries, result),
        *(spread_parts(result, apart) if blind else [f"<h2>How far apart</h2>{apart}"]),
        _table(entries, result["limit_percent"]),
        _why(entries),
        f"<h2>Iteration by iteration</h2>{each}",
        _sides(result),
        _limits(result),
    ]
    return page(f"Ringlight cross-check: {experiment.spec.name}", parts)


def _differences(entries: Sequence[Entry], limit: float) -> Figure:
    figure, axis = chart(0.9 + 0.3 * len(entries), left=2.6, top=0.1)
    whole, alone = (
        [entry[figure]["difference_percent"] for entry in entries] for figure in JUDGED
    )
    places = range(len(entries))
    axis.axvspan(-limit, limit, color=LIGHT, alpha=0.16, linewidth=0)
    axis.axvline(0, color=QUIET, linewidth=1)
    axis.hlines(places, 0, whole, color=_SIMULATED, linewidth=1.4)
    look: Any = {"linestyle": "", "marker": "o", "markersize": 6, "color": _SIMULATED}
    axis.plot(whole, places, **look)
    axis.plot(alone, places, **look, markerfacecolor="none")
    named_rows(axis, [entry["label"] for entry in entries])
    reach = 1.15 * max(limit, *(abs(value) for value in (*whole, *alone)))
    axis.set(xlim=(-reach, reach), xlabel="simulated against emulated, %")
    return figure


def _series(entries: Sequence[Entry]) -> Figure:
    columns = min(3, len(entries))
    rows = math.ceil(len(entries) / columns)
    figure, axes = sheet(0.8 + 1.75 * rows, rows=rows, columns=columns, top=0.5)
    for axis in (
        axes[-1][len(entries) - columns * rows :]
        if len(entries) < columns * rows
        else ()
    ):
        axis.axis("off")
    for axis, entry in zip(
        (axis for line in axes for axis in line), entries, strict=False
    ):
        for side, colour, dash in (
            ("emulated", _EMULATED, "-"),
            ("simulated", _SIMULATED, _DASHED),
        ):
            values = entry["series"][side]
            axis.plot(range(1, len(values) + 1), values, color=colour, linestyle=dash)
        top = 1.15 * max(max(values) for values in entry["series"].values())
        axis.set(title=entry["label"], ylim=(0, top))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0][0].set_ylabel("iteration, s")
    axes[-1][0].set_xlabel("iteration")
    legend(
        figure, "how known", [key(_EMULATED, "emulated"), key(_SIMULATED, "simulated")]
    )
    return figure


def _header(experiment: Experiment, result: Mapping[str, Any]) -> str:
    whole, alone = (
        abs(result["worst"][figure]["difference_percent"]) for figure in JUDGED
    )
    apart = f"{whole:.1f} % in an iteration and {alone:.1f} % in its all-reduce"
    emulated, scale = result["emulated"], experiment.plans[0].setting.scale
    if "blind" in result:
        of = result["blind"]["kinds"]["all"]["allreduce_s"]
        words = f"Half of {result['blind']['kinds']['all']['jobs']} blind predictions are within"
        return header(
            "Ringlight blind test",
            f"{words} {of['median']:.1f}\N{NO-BREAK SPACE}% of an all-reduce, 95 of 100 within "
            f"{of['p95']:.1f}\N{NO-BREAK SPACE}%",
            f"{experiment.spec.description} All were predicted before the first ran on the testbed.",
            [
                ("workers", emulated["runtime"]),
                ("the emulation is rated", emulated["fidelity"]),
            ],
            emulated["complete"],
        )
    headline = f"Simulation and emulation are apart by up to {apart}"
    if emulated["fidelity"] == "bad":
        headline = NO_RESULT
    elif result["within_limit"]:
        headline = f"Simulation and emulation agree within {apart}"
    lead = f"{experiment.spec.description} Run on the testbed and computed in virtual time."
    chips = (
        ("workers", emulated["runtime"]),
        ("the emulation is rated", emulated["fidelity"]),
        ("limit", f"{result['limit_percent']:g} %"),
        ("time × ", f"{scale.time:g}"),
        ("payload ÷ ", f"{scale.payload:g}"),
    )
    return header("Ringlight cross-check", headline, lead, chips, emulated["complete"])


def _hero(entries: Sequence[Entry], result: Mapping[str, Any]) -> str:
    inside, off = (
        sum(entry["within_limit"] for entry in entries),
        [entry["off"] for entry in entries],
    )
    cards = []
    for figure, what in _SAID.items():
        worst = max(entries, key=lambda entry: abs(entry[figure]["difference_percent"]))
        largest = f"{signed(worst[figure]['difference_percent'])} <small>%</small>"
        cards.append((f"Largest difference of {what}", largest, text(worst["label"])))
    within = f"{inside} <small>of {len(entries)}</small>"
    rest = f"{off.count('emulation')} × emulation, {off.count('neither')} × neither"
    return hero(
        [
            *cards,
            (
                f"Within {result['limit_percent']:g} %",
                within,
                "jobs in runs, iteration and all-reduce both",
            ),
            (
                "Which is off",
                f"{off.count('simulation')} <small>× simulation</small>",
                rest,
            ),
        ]
    )


def _table(entries: Sequence[Entry], limit: float) -> str:
    def seconds(figure: str, side: str) -> Callable[[Entry], str]:
        def cell(entry: Entry) -> str:
            value = 1000 * entry[figure][side]
            return f"{value:,.{0 if value >= 10 else 1}f} ms"

        return cell

    def apart(figure: str) -> Callable[[Entry], str]:
        def cell(entry: Entry) -> str:
            difference = entry[figure]["difference_percent"]
            words = f"{signed(difference)} %"
            return words if abs(difference) <= limit else mark("bad", words)

        return cell

    columns: list[tuple[str, Callable[[Entry], str]]] = [("", _label)]
    for figure, what in zip(JUDGED, ("iteration", "all-reduce"), strict=True):
        columns += [
            (f"{what} {tag('measured')}", seconds(figure, "emulated")),
            (tag("simulated"), seconds(figure, "simulated")),
            ("difference", apart(figure)),
        ]
    return table_of(entries, columns) + quiet(
        "Means over ranks and iterations. A difference is that of the simulated figure, in "
        "per cent of the emulated one; the limit is on either. Both sides wait for the same computing, which "
        "makes an iteration's difference smaller than that of what is simulated, its all-reduce."
    )


def _label(entry: Entry) -> str:
    return text(entry["label"])


def _why(entries: Sequence[Entry]) -> str:
    columns = [
        ("", _label),
        ("off", lambda entry: entry["off"]),
        (
            "emulated is longer by",
            lambda entry: f"{signed(1000 * entry['causes']['gap_s'])} ms",
        ),
        ("of which", lambda entry: text("; ".join(entry["why"]))),
    ]
    return (
        "<h2>Which is off, and why</h2>"
        "<p>By how much an emulated iteration is longer, and where that comes from as far as the runs tell. "
        "The emulation's are late timers, links below their setting, and the time of kernel, software "
        "switches, workers and agents, which share one machine's processors and stand for hardware. The "
        "simulation's is what it leaves out of the scenario: TCP, the controller, steps that overlap.</p>"
        f"{table_of(entries, columns, 9)}"
    )


def _sides(result: Mapping[str, Any]) -> str:
    emulated, simulated = result["emulated"], result["simulated"]
    measured = "Its links were not measured."
    if links := emulated["links"]:
        measured = (
            f"Its links gave {100 * links['least']:.1f} to {100 * links['most']:.1f} % of their settings, "
            f"median {100 * links['median']:.1f} %; the simulation takes "
            f"{100 * simulated['payload_share']:.1f} %."
        )
    return (
        "<h2>The two sides</h2>"
        f"<p>Emulated: <code>{text(emulated['run'])}</code>, which is rated "
        f"{mark(emulated['fidelity'], emulated['fidelity'])}. {measured}</p>"
        f"{listing(text(reason['text']) for reason in emulated['reasons'])}"
        f"<p>Simulated: <code>{text(simulated['run'])}</code>, with these assumptions, none of them fitted "
        f"to an emulated run:</p>{assumptions(simulated['assumptions'])}"
    )


def _limits(result: Mapping[str, Any]) -> str:
    left_out, missing = result["simulated"].get("left_out", ()), result["not_compared"]
    alone = (
        f"Not compared, as only one side has them: {text(', '.join(missing))}."
        if missing
        else ""
    )
    return f"<h2>What the simulation leaves out</h2>{listing(map(text, left_out))}{quiet(alone)}"
