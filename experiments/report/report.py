"""The report: one HTML page that a person reads without the run folder or a network.

It is made of ``sections``. A picture is drawn twice, for wide and for narrow screens (``charts``,
``drawing.narrow``).
"""

from __future__ import annotations

from pathlib import Path

from ringlight.experiments.record.writing import write_whole
from ringlight.experiments.report.page import drawing, folded, page
from ringlight.experiments.report.perfetto import write_trace
from ringlight.experiments.report.sections import Section, names, sections
from ringlight.experiments.report.view import View


def parts() -> tuple[str, ...]:
    """Names of all sections: what a file's ``paper.says`` may speak to."""
    return names()


def render(view: View, plots: Path, *, png: bool = False) -> str:
    """The page; its pictures also go into ``plots`` (:func:`drawing`)."""
    with drawing(plots, png=png) as draw:
        found = [(section, section.body(view, draw)) for section in sections()]
    return page(f"Ringlight: {view.experiment.spec.name}", [_titled(*one) for one in found if one[1]])


def _titled(section: Section, body: str) -> str:
    if section.folded:
        return folded(f"<h2>{section.title}</h2>", body, "part")
    return f"<h2>{section.title}</h2>{body}" if section.title else body


def write_report(folder: Path, view: View, *, png: bool = False) -> None:
    """Write report.html, plots/ and trace.json into a run folder; ``png`` as there. Raises WriteError."""
    write_whole(folder / "report.html", render(view, folder / "plots", png=png))
    write_trace(folder / "trace.json", view.runs)
