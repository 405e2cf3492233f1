"""The page as the core knows it: beside a report, and at a lab's controller."""

from __future__ import annotations

from pathlib import Path

from ringlight.experiments.cli.common import say
from ringlight.experiments.runner.page_kinds import PageKind
from ringlight.extensions.page.page_files import VIEW


def _beside(folder: Path, watched: bool) -> str:
    # Making the page takes what commands that only build labs do without.
    from ringlight.extensions.page.beside import beside

    return beside(folder, watched)


VIEW_PAGE = PageKind(
    beside=_beside,
    flag="view",
    help="Print the address of the lab's live view.",
    announce=lambda url: say(f"watch the light at {url}{VIEW}"),
)
