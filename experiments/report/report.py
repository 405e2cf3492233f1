"""The report: one HTML page that a person reads without the run folder or a network.

It is made of sections, each a module of ``sections`` with its figures; a new one is a new file there:

    ORDER = 13                        place in the page: pictures below 20, tables from there, then from
                                      90 on whether to believe it and where it comes from
    TITLE = "Iterations"              its heading, if it has one
    FOLDED = True                     only its heading is seen until it is opened; optional
    NEEDS = ("iteration",)            appears where there is a row of each of these metrics,
    def wanted(view) -> list          and this finds something to show; both are optional
    def render(view, draw) -> str     HTML; draw(name, caption, figure, …) makes a picture of figure(…)

A picture is drawn twice, for wide and for narrow screens (``charts``, ``drawing.narrow``).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringlight.experiments.record.writing import write_whole
from ringlight.experiments.report import sections as _sections
from ringlight.experiments.report.page import folded, page, picture
from ringlight.experiments.report.perfetto import write_trace
from ringlight.experiments.report.view import Draw, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def parts() -> tuple[str, ...]:
    """Names of all sections: what a file's ``paper.says`` may speak to."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(_sections.__path__)))


@cache
def sections() -> tuple[Any, ...]:
    """The modules of all sections, in the order of the page."""
    found = [importlib.import_module(f"{_sections.__name__}.{name}") for name in parts()]
    return tuple(sorted(found, key=lambda section: section.ORDER))


def appears(section: Any, view: View) -> bool:
    """Whether a section has anything to say."""
    needs, wanted = getattr(section, "NEEDS", ()), getattr(section, "wanted", None)
    return view.metrics.issuperset(needs) and (wanted is None or bool(wanted(view)))


def render(view: View, plots: Path, *, png: bool = False) -> str:
    """The page; its pictures also become SVG files in ``plots``, made if absent, and with ``png`` PNG files.

    PNG takes as long as all the rest of a picture, and a page has no use for it.
    """
    # matplotlib takes a second to load, which only who draws should wait for.
    import matplotlib

    from ringlight.experiments.report.drawing import STYLE, drawn

    plots.mkdir(parents=True, exist_ok=True)

    def draw(name: str, caption: str, figure: Callable[..., Figure], *args: Any) -> str:
        return picture(drawn(plots, name, caption, png, figure, *args))

    with matplotlib.rc_context(STYLE):
        found = [_rendered(section, view, draw) for section in sections() if appears(section, view)]
    return page(f"Ringlight: {view.experiment.spec.name}", found)


def _rendered(section: Any, view: View, draw: Draw) -> str:
    title, body = getattr(section, "TITLE", ""), section.render(view, draw)
    if getattr(section, "FOLDED", False):
        return folded(f"<h2>{title}</h2>", body, "part")
    return f"{f'<h2>{title}</h2>' if title else ''}{body}"


def write_report(folder: Path, view: View, *, png: bool = False) -> None:
    """Write report.html, plots/ and trace.json into a run folder; ``png`` as there. Raises WriteError."""
    write_whole(folder / "report.html", render(view, folder / "plots", png=png))
    write_trace(folder / "trace.json", view.runs)
