"""What the run ran on: machine, versions, and the code that made it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ringlight.experiments.report.page import folded, row, table, text
from ringlight.experiments.report.view import Draw, View

ORDER = 100
#: Shown by sections of their own.
_ELSEWHERE = ("assumptions", "left_out", "not_run", "arms")


def render(view: View, draw: Draw) -> str:
    facts, paper = view.environment, view.experiment.spec.paper
    after = "" if paper is None else f"After {text(paper.citation)}. "
    listed = table(["what", "value"], [row(map(text, fact), 9) for fact in _listed(facts)], 9)
    return (
        f"<footer><p>{_made(facts)}</p>{folded('Environment', listed)}"
        f"<p>{after}Made by Ringlight from the files of this run folder; <code>result.json</code> and "
        "<code>rows.csv</code> have every figure, labelled measured, simulated, analytic or published; "
        "<code>trace.json</code> has the iterations, flows and changes of light of all runs, for "
        "ui.perfetto.dev.</p></footer>"
    )


def _made(facts: Mapping[str, Any]) -> str:
    """One line: code, machine and time."""
    said = []
    if commit := facts.get("commit"):
        said.append(f"commit <code>{text(commit)}</code>")
    if code := facts.get("code"):
        said.append(f"code version <code>{text(code)}</code>")
    if processor := facts.get("processor"):
        said.append(f"on {text(facts.get('processors', ''))} × {text(processor)}")
    if started := facts.get("started"):
        said.append(text(started))
    return ", ".join(said)


def _listed(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from _listed(value, f"{prefix}{key}.")
        elif prefix or key not in _ELSEWHERE:
            yield f"{prefix}{key}", value
