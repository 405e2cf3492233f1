"""Supply what only one paper needs: closed forms next to the runs' figures, and a verdict in words.

A module for each paper, in an extension (``Extension.papers``), with

    def closed_forms(run: Run, latency_s: float) -> Iterator[Row]   analytic figures of a run, of which each
                                                                    transfer had this latency besides
    def verdict(base: AtBase) -> Iterator[Finding]                  where the paper's system wins and loses
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from ringlight.experiments.analysis.rows import Row, Value
from ringlight.experiments.record.runs import Run
from ringlight.fabric.extension import loaders


@dataclass(frozen=True)
class Finding:
    """A sentence or two of a verdict. ``note``: of a published figure; ``free``: of what has none."""

    kind: Literal["wins", "loses", "note", "free"]
    text: str


def analytic(run: Run) -> Callable[[str, Value, str], Row]:
    """Return a function that makes a row of the first job of a run from a closed form: by metric, value
    and unit."""
    plan, subject = run.plan, f"job {next(iter(run.jobs))}"
    repeat = plan.repeat if plan.repeat > 1 else None
    return lambda metric, value, unit: Row(
        plan.arm, subject, metric, value, unit, "analytic", plan.point, repeat
    )


@cache
def papers() -> tuple[str, ...]:
    """Return the names of all papers that have a module, sorted."""
    return tuple(sorted(loaders("papers")))


def paper(name: str) -> Any:
    """Return the module of a paper. Raises KeyError for a paper without a module."""
    return loaders("papers")[name]()
