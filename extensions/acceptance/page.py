"""Make the page that compares switches: the conformance list, and measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ringlight.experiments.report.charts import (
    chart,
    key,
    legend,
    named_rows,
    plain_ticks,
    prefixed,
    sheet,
    spans,
)
from ringlight.experiments.report.drawing import INK, LIGHT, PALETTE
from ringlight.experiments.report.page import (
    NOTHING,
    Draw,
    drawing,
    header,
    hero,
    listing,
    mark,
    page,
    table_of,
    text,
)
from ringlight.extensions.acceptance.items import SECTIONS

Switch = Mapping[str, Any]
#: A row of the table: its group, a quantity's name, and what makes a switch's cell, HTML.
Row = tuple[str, str, Callable[[Switch], str]]
#: The same of a measurement: its group, its name, the measurement, and what writes it.
Quantity = tuple[str, str, str, Callable[[Mapping[str, Any]], str]]
_WORDS = {
    "green": mark("good", "ok"),
    "failed": mark("bad", "failed"),
    "skipped": NOTHING,
}
_TO_LIGHT = "command_to_light_"


def render(document: Mapping[str, Any], folder: Path) -> str:
    """Return the page of an object of ``acceptance.json``.

    The figures of the page are also saved in ``folder``, which is created if absent.
    """
    switches = document["switches"]
    with drawing(folder) as draw:
        pictures = _pictures(switches, draw)
    parts = [
        _header(document),
        _hero(switches),
        _side_by_side(switches),
        *pictures,
        _items(switches),
        _told(switches, "failed", "What failed"),
        _told(switches, "skipped", "What could not be tried"),
        _method(switches),
    ]
    return page("Ringlight: acceptance of optical switches", parts)


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    value = 1e3 * seconds
    return f"{value:,.0f} ms" if value >= 1000 else f"{value:.3g} ms"


def _count(switch: Switch, state: str) -> int:
    return sum(item["state"] == state for item in switch["items"])


def _measured(switch: Switch, name: str) -> Mapping[str, Any] | None:
    """Return a measurement; None if there is none."""
    measurement = (switch.get("measured") or {}).get(name)
    return (
        None
        if measurement is None or "lacks" in measurement or "failed" in measurement
        else measurement
    )


def _header(document: Mapping[str, Any]) -> str:
    switches = document["switches"]
    failed = sum(_count(switch, "failed") for switch in switches)
    names = [switch["name"] for switch in switches]
    what = names[0] if len(names) == 1 else f"{len(names)} optical switches"
    verdict = (
        "no item of the conformance list failed"
        if not failed
        else f"{failed} items failed"
    )
    lead = (
        "What drivers and their switches do of the 45 items of the conformance list, and what frames that "
        "pass them tell of dark time, speed and losses."
    )
    chips = [(key_, value) for key_, value in document["machine"].items() if value]
    return header(
        "Acceptance of optical switches", f"{what}: {verdict}", lead, chips, True
    )


def _hero(switches: Sequence[Switch]) -> str:
    if len(switches) > 1:
        return ""
    (switch,) = switches
    failed, skipped = (_count(switch, state) for state in ("failed", "skipped"))
    green = f"{_count(switch, 'green')} <small>of {len(switch['items'])} items</small>"
    cards = [("Conformance", green, f"{failed} failed, {skipped} could not be tried")]

    def big(seconds: float | None) -> str:
        return milliseconds(seconds).replace(" ms", " <small>ms</small>")

    if dark := _measured(switch, "dark_time"):
        least, most = (
            milliseconds(dark["declared_s"][end]) for end in ("least", "most")
        )
        cards.append(
            (
                "Dark time, median",
                big(dark["measured"].get("p50_s")),
                f"declared {least} to {most}",
            )
        )
    if light := _measured(switch, f"{_TO_LIGHT}1"):
        late = f"99th percentile {milliseconds(light['light'].get('p99_s'))}"
        cards.append(
            ("Command to light, one circuit", big(light["light"].get("p50_s")), late)
        )
    if kept := _measured(switch, "kept_circuits"):
        of = f"of {kept['sent']:,} at {kept['rate_bps'] / 1e9:.2f} Gbit/s"
        cards.append(
            ("Lost on a kept circuit", f"{kept['lost']} <small>frames</small>", of)
        )
    return hero(cards)


def _figure(
    name: str, write: Callable[[Mapping[str, Any]], str]
) -> Callable[[Switch], str]:
    def cell(switch: Switch) -> str:
        if (measurement := _measured(switch, name)) is not None:
            return write(measurement)
        raw = (switch.get("measured") or {}).get(name) or {}
        return mark("bad", "failed") if "failed" in raw else NOTHING

    return cell


def _lost(measurement: Mapping[str, Any]) -> str:
    words = f"{measurement['lost']:,} of {measurement['sent']:,}"
    return words if not measurement["lost"] else mark("bad", words)


def _counts_of(switches: Sequence[Switch]) -> list[int]:
    names = {name for switch in switches for name in switch.get("measured") or {}}
    return sorted(
        int(name.removeprefix(_TO_LIGHT))
        for name in names
        if name.startswith(_TO_LIGHT)
    )


def _time(*path: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that writes one time of a measurement."""
    part, key_ = path
    return lambda measurement: milliseconds(measurement[part].get(key_))


def _declared(measurement: Mapping[str, Any]) -> str:
    declared = measurement["declared_s"]
    return f"{1e3 * declared['least']:.3g} to {milliseconds(declared['most'])}"


def _by_the_switch(measurement: Mapping[str, Any]) -> str:
    counted, seen = (
        measurement.get("last_by_the_switch_s"),
        measurement.get("last_measured_s"),
    )
    if counted is None or not seen:
        return NOTHING
    return f"{1e3 * counted:.3g}, by traffic {milliseconds(sum(seen) / 2)}"


def _moved(measurement: Mapping[str, Any]) -> str:
    return f"{measurement['moving']} of {measurement['others']}, {measurement['changes']} times"


def _errors(measurement: Mapping[str, Any]) -> str:
    return text(
        ", ".join(f"{count} × {name}" for name, count in measurement["errors"].items())
        or "none"
    )


_DARK, _KEPT, _FLOOD = (
    "Dark time of a circuit that moves",
    "A kept circuit while others move",
    "Flood of commands",
)
_LOSS, _TO = "Insertion loss", "From command to light, median and 99th percentile"
#: What is measured: the group of the table's row, the quantity, the measurement, and what writes it.
_DARK_TIME: Sequence[Quantity] = (
    (_DARK, "by traffic, median", "dark_time", _time("measured", "p50_s")),
    (_DARK, "by traffic, most", "dark_time", _time("measured", "most_s")),
    (_DARK, "declared", "dark_time", _declared),
    (
        _DARK,
        "furthest outside of what is declared",
        "dark_time",
        _time("outside_declared", "most_s"),
    ),
    (_DARK, "as the driver reports it, median", "dark_time", _time("driver", "p50_s")),
    (
        _DARK,
        "of the last change, as the switch counted it",
        "dark_time",
        _by_the_switch,
    ),
)
_OTHERS: Sequence[Quantity] = (
    (_KEPT, "frames lost", "kept_circuits", _lost),
    (_KEPT, "others that moved", "kept_circuits", _moved),
    (_KEPT, "stream", "kept_circuits", lambda d: f"{d['rate_bps'] / 1e9:.3f} Gbit/s"),
    (_FLOOD, "sessions", "flood", lambda d: str(d["sessions"])),
    (_FLOOD, "changes a second", "flood", lambda d: f"{d['changes_per_s']:,.0f}"),
    (_FLOOD, "each, 99th percentile", "flood", _time("each", "p99_s")),
    (_FLOOD, "failed", "flood", _errors),
    (
        _FLOOD,
        "all stands in the end",
        "flood",
        lambda d: "yes" if d["stands_in_the_end"] else "no",
    ),
    (_FLOOD, "frames lost on a kept circuit", "flood", _lost),
    (_LOSS, "median", "insertion_loss", lambda d: f"{d['median_db']:.2f} dB"),
    (_LOSS, "most", "insertion_loss", lambda d: f"{d['most_db']:.2f} dB"),
    (
        _LOSS,
        "as its maker measured it, median",
        "factory_loss",
        lambda d: f"{d['median_db']:.2f} dB",
    ),
    (
        _LOSS,
        "as its maker measured it, most",
        "factory_loss",
        lambda d: f"{d['most_db']:.2f} dB",
    ),
)


def _rows(switches: Sequence[Switch]) -> Iterator[Row]:
    for key_ in ("vendor", "model", "version"):
        yield "The switch", key_, partial(_said, key_)
    yield (
        "The switch",
        "ports",
        lambda s: f"{s['ports']['ingress']} in, {s['ports']['egress']} out",
    )
    yield "Conformance", "items green", lambda s: str(_count(s, "green"))
    yield (
        "Conformance",
        "items failed",
        lambda s: mark("bad", str(n)) if (n := _count(s, "failed")) else "0",
    )
    yield (
        "Conformance",
        "items that could not be tried",
        lambda s: str(_count(s, "skipped")),
    )
    of_counts = [
        (
            _TO,
            "one circuit" if count == 1 else f"{count} circuits at once",
            f"{_TO_LIGHT}{count}",
            _late,
        )
        for count in _counts_of(switches)
    ]
    for group, what, name, write in (*_DARK_TIME, *of_counts, *_OTHERS):
        yield group, what, _figure(name, write)


def _late(measurement: Mapping[str, Any]) -> str:
    return ", ".join(
        milliseconds(measurement["light"].get(end)) for end in ("p50_s", "p99_s")
    )


def _side_by_side(switches: Sequence[Switch]) -> str:
    columns = [("", _label), *(_column(switch) for switch in switches)]
    filled = [
        row
        for row in _rows(switches)
        if any(row[2](switch) not in ("", NOTHING) for switch in switches)
    ]
    title = "Side by side" if len(switches) > 1 else "Figures"
    return (
        f"<h2>{title}</h2>{table_of(filled, columns, group=lambda row: text(row[0]))}"
    )


def _label(row: Row) -> str:
    return text(row[1]).replace(" ", "&nbsp;")


def _said(key_: str, switch: Switch) -> str:
    """Return the text of an entry of a switch's identity, HTML."""
    return text(switch["identity"].get(key_, ""))


def _column(switch: Switch) -> tuple[str, Callable[[Row], str]]:
    return text(switch["name"]), lambda row: row[2](switch)


def _colours(switches: Sequence[Switch]) -> dict[str, str]:
    return {
        switch["name"]: PALETTE[number % len(PALETTE)]
        for number, switch in enumerate(switches)
    }


def _pictures(switches: Sequence[Switch], draw: Draw) -> list[str]:
    figures = []
    if dark := [(s, m) for s in switches if (m := _measured(s, "dark_time"))]:
        caption = (
            "Each dot is the dark time of one circuit in one change, from the frames that it lost. The band "
            "is what is declared; the mark is the median of what the driver reports, which includes its own "
            "reading."
        )
        figures.append(f"<h2>Dark time</h2>{draw('dark-time', caption, _dark, dark)}")
    if counts := [
        n
        for n in _counts_of(switches)
        if any(_measured(s, f"{_TO_LIGHT}{n}") for s in switches)
    ]:
        caption = "Share of changes after which light was there, from the call on. One line for each switch."
        each = draw("to-light", caption, _to_light, switches, counts)
        figures.append(f"<h2>From command to light</h2>{each}")
    return figures


def _dark(measurements: Sequence[tuple[Switch, Mapping[str, Any]]]) -> Figure:
    figure, axis = chart(0.75 + 0.55 * len(measurements), left=2.2, top=0.1)
    colours = _colours([switch for switch, _ in measurements])
    rng = np.random.default_rng(1)
    most = 0.0
    for number, (switch, dark) in enumerate(measurements):
        declared, samples = dark["declared_s"], dark["samples"]
        spans(
            axis,
            LIGHT,
            [(number, 1e3 * declared["least"], 1e3 * declared["most"])],
            0.72,
            alpha=0.25,
        )
        ends = [1e3 * declared["least"], 1e3 * declared["most"]]
        axis.vlines(ends, number - 0.36, number + 0.36, color=LIGHT)
        middles = [500 * (sample["least_s"] + sample["most_s"]) for sample in samples]
        spread = number + rng.uniform(-0.24, 0.24, len(middles))
        axis.plot(
            middles,
            spread,
            "o",
            markersize=2.6,
            alpha=0.75,
            color=colours[switch["name"]],
        )
        reported = 1e3 * dark["driver"].get("p50_s", 0.0)
        if reported:
            axis.plot(
                [reported], [number], "|", markersize=16, markeredgewidth=1.6, color=INK
            )
        most = max([most, reported, 1e3 * declared["most"], *middles])
    named_rows(axis, [switch["name"] for switch, _ in measurements])
    axis.set(xlim=(0, 1.08 * most or 1), xlabel="ms without light")
    return figure


def _to_light(switches: Sequence[Switch], counts: Sequence[int]) -> Figure:
    figure, axes = sheet(2.75, columns=len(counts), top=0.55)
    colours = _colours(switches)
    for axis, count in zip(axes[0], counts, strict=True):
        every: list[float] = []
        for switch in switches:
            if (
                measurement := _measured(switch, f"{_TO_LIGHT}{count}")
            ) and measurement["samples_s"]:
                times = sorted(measurement["samples_s"])
                share = np.arange(1, len(times) + 1) / len(times)
                axis.step(
                    [times[0], *times],
                    [0, *share],
                    where="post",
                    color=colours[switch["name"]],
                )
                every += times
        axis.set(
            xscale="log",
            ylim=(0, 1.03),
            title="one circuit" if count == 1 else f"{count} circuits",
        )
        if every:
            axis.set_xlim(0.8 * min(every), 1.25 * max(every))
            plain_ticks(axis.xaxis, min(every), max(every), 4)
            prefixed(axis.xaxis, "s")
    axes[0][0].set_ylabel("share of changes")
    legend(
        figure,
        "switch",
        [key(colours[switch["name"]], switch["name"]) for switch in switches],
    )
    return figure


def _items(switches: Sequence[Switch]) -> str:
    section_of = {
        number: section for section, items in SECTIONS.items() for number in items
    }
    numbers = range(len(switches[0]["items"]))

    def cell(switch: Switch) -> Callable[[int], str]:
        return lambda number: _WORDS[switch["items"][number]["state"]]

    first = switches[0]["items"]
    columns = [
        ("item", lambda number: str(first[number]["item"])),
        ("", lambda number: text(first[number]["what"])),
        *((text(switch["name"]), cell(switch)) for switch in switches),
    ]
    grouped = table_of(
        numbers,
        columns,
        2,
        group=lambda number: text(section_of[first[number]["item"]]),
    )
    return f"<h2>The conformance list</h2>{grouped}"


def _told(switches: Sequence[Switch], state: str, title: str) -> str:
    points = []
    for switch in switches:
        ports_by_text: dict[str, list[int]] = {}
        for item in switch["items"]:
            if item["state"] == state:
                ports_by_text.setdefault(item["text"], []).append(item["item"])
        lacks = "lacks " if state == "skipped" else ""
        for words, numbers in ports_by_text.items():
            which = ", ".join(map(str, numbers))
            points.append(
                f"<b>{text(switch['name'])}</b> {lacks}{text(words)} (item {which})"
            )
        for name, measurement in (switch.get("measured") or {}).items():
            words = (
                measurement.get("lacks")
                if state == "skipped"
                else measurement.get("failed")
            )
            if words:
                points.append(
                    f"<b>{text(switch['name'])}</b> {text(name.replace('_', ' '))}: {text(words)}"
                )
    return f"<h2>{title}</h2>{listing(points)}" if points else ""


def _method(switches: Sequence[Switch]) -> str:
    if not any(switch.get("measured") for switch in switches):
        return ""
    points = [
        "Frames with numbers go both ways between two ports of the switch, one every 0.1 ms each way. When "
        "circuits move, the frames between the last that came through and the first that came through again "
        "were lost; the clock at both ends of that gap bounds the dark time from below and above. The middle "
        "is shown. A sample whose bounds are more than 0.5 ms apart is left out, and counted.",
        "Command to light is from the call of the driver to the first frame at the new port, by the "
        "receiver's kernel. All circuits of the change move; one of them carries the stream.",
        "Frames on a kept circuit are counted where they are sent and where they arrive, while the others "
        "move without a pause.",
        "In the flood each session adds and removes a circuit of its own as fast as it is answered.",
        "What the driver reports as dark begins when it sends the command and ends with the reading that "
        "shows light, so it holds the time of both.",
        "Insertion loss is the difference between the switch's own power meters.",
    ]
    return f"<h2>How it was measured</h2>{listing(map(text, points))}"
