"""Sections of the report: each is a function that gives its HTML, or nothing where it has nothing to say."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ringlight.experiments.report.view import Draw, View
from ringlight.fabric.extension import extensions

Render = Callable[[View, Draw], str]
#: The section about what cannot be believed, by its name.
DOUBTS = "fidelity"


@dataclass(frozen=True)
class Section:
    """``order``: its place in the page: pictures below 20, tables from there, then from 90 on whether to
    believe it and where it comes from. ``needs``: metrics; there must be a row of each. ``folded``: only its
    title is seen until it is opened."""

    name: str
    order: int
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
    order: int, title: str = "", *, needs: tuple[str, ...] = (), folded: bool = False
) -> Callable[[Render], Render]:
    """Return a decorator that registers a function as a section of the report, with the function's name."""

    def register(render: Render) -> Render:
        _FOUND.append(Section(render.__name__, order, title, needs, folded, render))
        return render

    return register


def _of_extensions() -> list[str]:
    """Return the modules of extensions that have sections."""
    return [
        installed.module(installed.extension.sections)
        for installed in extensions()
        if installed.extension.sections
    ]


@cache
def names() -> tuple[str, ...]:
    """Return the names of all sections, sorted, from the text of their modules, which take long to import."""
    listed: list[str] = []
    files = [module for path in __path__ for module in Path(path).glob("*.py")]
    files += [
        Path(str(spec.origin)) for module in _of_extensions() if (spec := find_spec(module)) is not None
    ]
    for file in files:
        listed += _DECORATED.findall(file.read_text(encoding="utf-8"))
    return tuple(sorted(listed))


@cache
def sections() -> tuple[Section, ...]:
    """Return all sections of the modules here and of extensions, in the order of the page."""
    here = [module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.")]
    for module in (*here, *_of_extensions()):
        importlib.import_module(module)
    return tuple(sorted(_FOUND, key=lambda entry: entry.order))
