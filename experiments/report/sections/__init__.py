"""Sections of the report: each is a function that gives its HTML, or nothing where it has nothing to say."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ringlight.experiments.report.view import Draw, View
from ringlight.fabric.extension import ExtensionError, extensions, loaded

Render = Callable[[View, Draw], str]
#: The section about what cannot be believed, by its name.
DOUBTS = "fidelity"


@dataclass(frozen=True)
class Section:
    """``place``: in the page: pictures below 20, tables from there, then from 90 on whether to believe it and
    where it comes from; of an extension's section, the name of the section that it follows. ``needs``:
    metrics; there must be a row of each. ``folded``: only its title is seen until it is opened."""

    name: str
    place: int | str
    title: str
    needs: tuple[str, ...]
    folded: bool
    render: Render

    def body(self, view: View, draw: Draw) -> str:
        """Return the section's HTML without the title; empty if it has nothing to show."""
        return self.render(view, draw) if view.metrics.issuperset(self.needs) else ""


_FOUND: list[Section] = []
_DECORATED = re.compile(r"^@section\(.*?^def (\w+)", re.MULTILINE | re.DOTALL)


def section(
    place: int | str,
    title: str = "",
    *,
    needs: tuple[str, ...] = (),
    folded: bool = False,
) -> Callable[[Render], Render]:
    """Return a decorator that registers a function as a section of the report, with the function's name."""

    def register(render: Render) -> Render:
        _FOUND.append(Section(render.__name__, place, title, needs, folded, render))
        return render

    return register


@cache
def names() -> tuple[str, ...]:
    """Return the names of all sections, sorted; the core's from the text of their modules, which take long to
    import."""
    listed = [
        value.partition(":")[2]
        for item in extensions()
        for value in item.extension.sections
    ]
    for path in __path__:
        for module in Path(path).glob("*.py"):
            listed += _DECORATED.findall(module.read_text(encoding="utf-8"))
    return tuple(sorted(listed))


@cache
def sections() -> tuple[Section, ...]:
    """Return all sections, of the modules here and of extensions, in the order of the page."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    loaded("sections")
    return in_order(_FOUND)


def in_order(registered: Sequence[Section]) -> tuple[Section, ...]:
    """Return sections in the order of the page; those that follow the same one stay in their order.

    Raises ExtensionError for one that follows none of them.
    """
    by_name = {entry.name: entry for entry in registered}
    number = {entry.name: count for count, entry in enumerate(registered)}

    def place(entry: Section) -> tuple[int, ...]:
        if isinstance(entry.place, int):
            return (entry.place,)
        if entry.place not in by_name:
            raise ExtensionError(
                f"section {entry.name} follows {entry.place}, and there is no such section"
            )
        return (*place(by_name[entry.place]), number[entry.name])

    return tuple(sorted(registered, key=place))
