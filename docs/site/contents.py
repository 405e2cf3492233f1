"""The navigation: groups of pages, read from ``contents.md``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CONTENTS = Path("docs/site/contents.md")
_LINE = re.compile(r"^- \[([^\]]+)\]\(([^)#\s]+)\)$")


@dataclass(frozen=True)
class Group:
    """A task of the reader: its heading, a sentence, and titles and paths (from the root) of its pages."""

    title: str
    sentence: str
    pages: tuple[tuple[str, Path], ...]

    @property
    def slug(self) -> str:
        """Return the name of its file."""
        return self.title.lower().replace(" ", "-")


def groups(root: Path) -> tuple[Group, ...]:
    """Return the groups in the order of the file, without entries that are no links."""
    _, *parts = (root / CONTENTS).read_text(encoding="utf-8").split("\n## ")
    return tuple(_group(part) for part in parts)


def _group(part: str) -> Group:
    title, _, body = part.partition("\n")
    sentence = next(line for line in body.splitlines() if line)
    links = (_LINE.match(line) for line in body.splitlines())
    pages = ((link[1], _from_root(link[2])) for link in links if link is not None)
    return Group(title, sentence, tuple(pages))


def _from_root(target: str) -> Path:
    return Path(os.path.normpath(CONTENTS.parent / target))


def pages(root: Path) -> tuple[Path, ...]:
    """Return the pages of the repository, as paths from its root."""
    globs = ("*.md", "docs/*.md", "scenarios/*.md")
    return tuple(
        path.relative_to(root) for glob in globs for path in sorted(root.glob(glob))
    )


def mistakes(root: Path) -> Iterator[str]:
    """Yield a line for each page that no group or more than one has, and for each entry without a page."""
    listed = [page for group in groups(root) for _, page in group.pages]
    known = [page for page in pages(root) if page != Path("README.md")]
    for page in known:
        if (count := listed.count(page)) != 1:
            yield f"{CONTENTS}: {page} is listed {count} times; list it once"
    for page in listed:
        if page not in known:
            yield f"{CONTENTS}: there is no page {page}"
