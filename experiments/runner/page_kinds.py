"""Pages that extensions add: beside the report of a run folder, and at a lab's controller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ringlight.fabric.extension import loaders


@dataclass(frozen=True)
class PageKind:
    """A page that shows runs and labs.

    ``beside``: called with a run folder, and whether a person may want to watch its runs, when the report is
    made. It may write the page there, and returns the HTML by which the report leads there. ``flag``: an
    option of every command that builds a lab, with ``help``; ``announce``: called with the URL of the lab's
    controller if the option was given.
    """

    beside: Callable[[Path, bool], str]
    flag: str
    help: str
    announce: Callable[[str], None]


@cache
def page_kinds() -> dict[str, PageKind]:
    """Return the pages of all extensions, by their files' names in run folders. Raises ExtensionError."""
    return {name: load() for name, load in loaders("pages").items()}


def page_flags() -> dict[str, PageKind]:
    """Return the pages by the options that announce them. Raises ExtensionError."""
    return {page.flag: page for page in page_kinds().values()}
