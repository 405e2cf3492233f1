"""Write the parts that only the page of a blind test has: its errors by kind of fabric, and the outliers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from ringlight.experiments.analysis.differences import FIGURES
from ringlight.experiments.analysis.explanations import signed
from ringlight.experiments.report.charts import named_rows, sheet
from ringlight.experiments.report.drawing import LIGHT, PALETTE, QUIET
from ringlight.experiments.report.page import mark, quiet, table_of, tag, text
from ringlight.extensions.crosscheck.drawn import kind_of

Entry = Mapping[str, Any]


def spread_figure(entries: Sequence[Entry], limit: float) -> Figure:
    """Return a figure with a dot for each job, by kind of fabric. The band is the limit, per cent."""
    kinds = list(dict.fromkeys(kind_of(entry["arm"]) for entry in entries))
    figure, axes = sheet(
        0.8 + 0.34 * len(kinds), columns=len(FIGURES), left=0.9, top=0.3
    )
    for axis, (key, what) in zip(axes[0], FIGURES.items(), strict=True):
        reach = 1.15 * max(
            limit, *(abs(entry[key]["difference_percent"]) for entry in entries)
        )
        axis.axvspan(-limit, limit, color=LIGHT, alpha=0.16, linewidth=0)
        axis.axvline(0, color=QUIET, linewidth=1)
        for y, kind in enumerate(kinds):
            differences = [
                e[key]["difference_percent"]
                for e in entries
                if kind_of(e["arm"]) == kind
            ]
            look: Any = {"linestyle": "", "marker": "o", "markersize": 4, "alpha": 0.55}
            axis.plot(differences, [y] * len(differences), color=PALETTE[1], **look)
        named_rows(axis, kinds if axis is axes[0][0] else [""] * len(kinds))
        axis.set(
            xlim=(-reach, reach), title=what, xlabel="simulated against emulated, %"
        )
    return figure


def spread_parts(result: Mapping[str, Any], picture: str) -> list[str]:
    """Return the table of errors, all jobs beyond the limit, and the heading of the table of all jobs."""
    blind, limit = result["blind"], result["limit_percent"]

    def size(figure: str, key: str) -> Callable[[tuple[str, Any]], str]:
        return lambda item: f"{item[1][figure][key]:.1f} %"

    columns: list[tuple[str, Callable[[tuple[str, Any]], str]]] = [
        ("fabric", lambda item: text(item[0])),
        ("jobs", lambda item: str(item[1]["jobs"])),
    ]
    for figure, what in FIGURES.items():
        columns += [
            (f"{what}, median {tag('measured')}", size(figure, "median")),
            ("95 of 100 within", size(figure, "p95")),
        ]
    columns += [
        ("bytes over the NIC's rate, median", size("trivial", "median")),
        ("95 of 100 within", size("trivial", "p95")),
    ]
    table = table_of(
        blind["kinds"].items(), columns, strong=lambda item: item[0] == "all"
    )
    unexplained = sum(not entry["explained"] for entry in blind["outliers"])
    outliers = table_of(
        blind["outliers"],
        [
            ("run", lambda entry: text(entry["run"])),
            ("job", lambda entry: text(entry["job"])),
            (
                "cause that the run names",
                lambda entry: (
                    text(entry["cause"])
                    if entry["cause"]
                    else mark("doubtful", "unexplained")
                ),
            ),
            *((what, _signed(figure)) for figure, what in FIGURES.items()),
            ("bytes over the NIC's rate", _signed("trivial")),
        ],
        3,
    )
    note = quiet(
        f"{blind['experiments']} experiments drawn from seed {blind['seed']}, all predicted before the first "
        f"was emulated; the predictions have SHA-256 {blind['predicted_sha256']}. No run is left out: one "
        "that calls itself bad counts. Bytes over the NIC's rate is the trivial predictor of an all-reduce: "
        "it knows of no queue, shared link, delay or step, and a simulation has to beat it."
    )
    there, jobs = len(blind["outliers"]), len(result["entries"])
    beyond = f"None of {jobs} jobs."
    if there:
        beyond = (
            f"{there} of {jobs} jobs, {unexplained} of them unexplained: the run names no cause for half of "
            "the difference."
        )
    return [
        f"<h2>How far predictions were off</h2>{picture}{table}{note}",
        f"<h2>Beyond {limit:g}&nbsp;%</h2><p>{beyond}</p>{outliers}",
        "<h2>Every job</h2><p>The farthest off first.</p>",
    ]


def _signed(figure: str) -> Callable[[Entry], str]:
    return lambda entry: f"{signed(entry[figure])} %"
