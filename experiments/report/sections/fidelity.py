"""Whether the testbed can be believed: its links, timers and processors against what they were set to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.report.page import row, table, text
from experiments.report.report import Draw
from experiments.report.view import View
from experiments.report.words import percent
from fabric.units import format_rate

ORDER = 90
NEEDS: tuple[str, ...] = ()
_MEANING = {
    "good": "The emulation gave what it was set to give.",
    "doubtful": "Read the figures with care: the emulation strayed from its settings.",
    "bad": "Do not believe the figures: the emulation did not hold its settings.",
}
_LINK_HEAD = ["link", "direction", "set", "measured", "ratio", "stolen CPU", "others' CPU"]
#: More links than these are folded away.
_MOST_LINKS = 24


def wanted(view: View) -> bool:
    return view.fidelity["verdict"] in _MEANING


def render(view: View, draw: Draw) -> str:
    found = view.fidelity
    verdict = found["verdict"]
    reasons = "".join(f"<li>{text(reason['text'])}</li>" for reason in found["reasons"])
    return (
        "<h2>Can this be believed?</h2>"
        f'<div class="verdict {verdict}"><b>{verdict.capitalize()}.</b> <span>{_MEANING[verdict]}</span>'
        f"{f'<ul>{reasons}</ul>' if reasons else ''}</div>{_repeated(found.get('repeated', ()))}"
        "<h3>Links against their settings</h3>"
        "<p>TCP payload received while all links of a kind were full at once, measured. Packet headers take "
        "0.7 % of frames of 9,000 bytes and 1.6 % of such of 4,000; a miss above 5 % is doubtful, above 10 % "
        f"bad.</p>{_links(found.get('links', ()))}"
        f"<h3>Timers and processors</h3><p>The timers that stand for GPU computation {_timers(found)}.</p>"
        f"{_processors(found)}"
        "<p>Shares of all processors, measured. Stolen is what the hypervisor gave to other machines, "
        "others' what processes took that are no part of the lab; either may be why a link or a timer is "
        "late.</p>"
    )


def _percent(share: float | None) -> str:
    return "not measured" if share is None else percent(share)


def _links(links: Sequence[Mapping[str, Any]]) -> str:
    shown = table(
        _LINK_HEAD,
        [
            row(
                [
                    text(link["link"]),
                    text(link["direction"]),
                    format_rate(link["set_bps"]),
                    format_rate(link["measured_bps"]),
                    percent(link["ratio"]),
                    _percent(link["stolen"]),
                    _percent(link["others"]),
                ],
                2,
            )
            for link in links
        ],
        2,
    )
    if len(links) <= _MOST_LINKS:
        return shown
    ratios = sorted(100 * link["ratio"] for link in links)
    return (
        f"<details><summary>{len(links)} rates, {ratios[0]:.1f} to {ratios[-1]:.1f} % of their settings, "
        f"median {ratios[len(ratios) // 2]:.1f} %</summary>{shown}</details>"
    )


def _timers(found: Mapping[str, Any]) -> str:
    timer = found.get("timer") or {}
    if timer.get("median_s") is None:
        return "were not measured"
    median, late, worst = (1000 * timer[key] for key in ("median_s", "p99_s", "max_s"))
    return (
        f"woke {median:.2f} ms late at the median, {late:.2f} ms at the 99th percentile "
        f"({percent(timer['p99_share_of_compute'])} of the time of an iteration's compute), "
        f"{worst:.1f} ms at worst"
    )


def _processors(found: Mapping[str, Any]) -> str:
    missing = found.get("samples_missing") or {}
    rows = [
        row(
            [
                text(name),
                *(percent(1 - busy[f"{how}_busy"], 0) for how in ("mean", "p95")),
                *(
                    _percent(busy[f"{how}_{what}"])
                    for what in ("stolen", "others")
                    for how in ("mean", "p95")
                ),
                *([percent(missing.get(name, 0))] if missing else []),
            ],
            1,
        )
        for name, busy in (found.get("cpu") or {}).items()
    ]
    if not rows:
        return ""
    whats = ("idle", "stolen", "others'")
    head = ["run", *(f"{what} CPU, {how}" for what in whats for how in ("mean", "worst 5 %"))]
    return table([*head, *(["samples missing"] if missing else [])], rows, 1)


def _repeated(entries: Sequence[Mapping[str, Any]]) -> str:
    """What was made once more by itself: why, both figures, and which counts."""
    if not entries:
        return ""
    rows = [
        row(
            [
                text(entry["name"]),
                text(entry["reasons"][0]["text"])
                + (f" (and {more} more)" if (more := len(entry["reasons"]) - 1) else ""),
                *("; ".join(_attempt(entry[which])) for which in ("first", "second")),
                "first" if entry["counts"] in ("first", entry["first"].get("run")) else "second",
            ],
            2,
        )
        for entry in entries
    ]
    return (
        "<h3>Made once more</h3><p>Others, or the hypervisor, had the processors, and that showed. Of two "
        "attempts the one counts from which less was taken, whatever its figures. Once a second attempt at a "
        "run was disturbed too, no further run was repeated.</p>"
        f"{table(['what', 'why', 'first', 'second', 'counts'], rows, 2)}"
    )


def _attempt(attempt: Mapping[str, Any]) -> Iterator[str]:
    times = attempt.get("jct_s") or attempt.get("completion_s")
    if times:
        yield ", ".join(f"{text(job)} {time:.1f} s" for job, time in times.items())
    elif "least" in attempt:
        yield f"{percent(attempt['least'])} to {percent(attempt['most'])} of the settings"
    if "taken" in attempt:
        yield f"{percent(attempt['taken'], 0)} of the processors taken"
