"""The report: one HTML page that a person reads without the run folder or a network.

It is made of ``sections``. A picture is drawn twice, for wide and for narrow screens (``charts``,
``drawing.narrow``).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

from ringlight.experiments.record.writing import write_whole
from ringlight.experiments.report.page import contents, drawing, folded, page
from ringlight.experiments.report.perfetto import write_trace
from ringlight.experiments.report.sections import DOUBTS, Section, sections
from ringlight.experiments.report.view import View

#: Calls a function with each number below another, and gives what it returned, in order.
Each = Callable[[Callable[[int], str], int], list[str]]


def one_by_one(function: Callable[[int], str], count: int) -> list[str]:
    """Return the results of ``function`` for each number below ``count``."""
    return [function(number) for number in range(count)]


def render(
    view: View, plots: Path, *, png: bool = False, each: Each = one_by_one
) -> str:
    """Return the HTML page. Its pictures are also saved in ``plots`` (:func:`drawing`).

    ``each``: function that makes the sections.
    """
    there = _ordered(
        sections(), believed=view.fidelity["verdict"] not in ("doubtful", "bad")
    )
    with drawing(plots, png=png) as draw:
        bodies = each(lambda number: there[number].body(view, draw), len(there))
    made = [
        (section, body) for section, body in zip(there, bodies, strict=True) if body
    ]
    parts = [_titled(section, body) for section, body in made]
    titled = [(section.name, section.title) for section, _ in made if section.title]
    return page(
        f"Ringlight: {view.experiment.spec.name}",
        [*parts[:1], contents(titled), *parts[1:]],
    )


def _ordered(there: Sequence[Section], *, believed: bool) -> list[Section]:
    """Return the sections in the order of the page: doubts come right after the head."""
    if believed:
        return list(there)
    return sorted(
        there, key=lambda section: (section is not there[0], section.name != DOUBTS)
    )


def _titled(section: Section, body: str) -> str:
    if section.folded:
        return folded(f'<h2 id="{section.name}">{section.title}</h2>', body, "part")
    return (
        f'<h2 id="{section.name}">{section.title}</h2>{body}' if section.title else body
    )


def prepare() -> None:
    """Import the drawing modules, and let them read their fonts, before there is anything to draw."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from ringlight.experiments.report.drawing import STYLE

    sections()
    with rc_context(STYLE):
        figure = Figure()
        figure.text(0, 0, "0")
        figure.savefig(io.BytesIO(), format="svg")


def write_report(folder: Path, view: View, *, each: Each = one_by_one) -> None:
    """Write report.html, plots/ and trace.json into a run folder; the rest as of :func:`render`.

    Raises WriteError.
    """
    write_whole(folder / "report.html", render(view, folder / "plots", each=each))
    write_trace(folder / "trace.json", view.runs)
