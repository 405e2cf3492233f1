"""Tables of light: how long setting it up took, and what was counted of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ringlight.experiments.record.runs import Run
from ringlight.experiments.report.page import NOTHING, folded, table_of, tag, text
from ringlight.experiments.report.view import Figures, View
from ringlight.experiments.report.words import called, meaning


def of_fabric(view: View, run: Run) -> Figures:
    """Return the figures of a run's fabric."""
    return view.figures_at(run.plan.arm, f"fabric {run.plan.setting.name}")


def times(subject: Figures, head: str, names: Sequence[str]) -> str:
    """Return a table of the spread of times: their meaning, median, 99th percentile and longest."""

    def part(end: str) -> Callable[[str], str]:
        return lambda name: subject.figure(f"{name}_{end}")

    columns = [
        (
            f"{head} {tag(subject.view.label)}",
            lambda name: meaning(f"{name}_max").rpartition(":")[0],
        ),
        ("median", part("p50")),
        ("99 %", part("p99")),
        ("longest", part("max")),
    ]
    return table_of([name for name in names if subject.row(f"{name}_p50")], columns)


def counted(
    columns_of: Sequence[Figures], names: Sequence[str], zero: Collection[str]
) -> str:
    """Return a table of counters, a column for each arm. ``zero``: counters that are 0 in a correct run."""

    def of(subject: Figures) -> Callable[[str], str]:
        return lambda name: (
            f"<b>{subject.figure(name)}</b>" if subject.row(name) else NOTHING
        )

    there = [name for name in names if any(subject.row(name) for subject in columns_of)]
    columns = [
        (
            "",
            lambda name: (
                f"{called(name)}: {meaning(name)}{'; 0 in a correct run' if name in zero else ''}"
            ),
        ),
        *((text(subject.arm), of(subject)) for subject in columns_of),
    ]
    return (
        folded(
            f"What was counted {tag(columns_of[0].view.label)}",
            table_of(there, columns),
        )
        if there
        else ""
    )
