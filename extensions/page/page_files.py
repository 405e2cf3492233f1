"""The files of the page, and its path."""

from __future__ import annotations

from pathlib import Path

#: Path of the page at a server.
VIEW = "/view/"
PAGE = Path(__file__).with_name("files")


def index_of(source: str) -> str:
    """Return the page itself, for a ``source`` other than a lab."""
    return (
        (PAGE / "index.html")
        .read_text(encoding="utf-8")
        .replace('content="lab"', f'content="{source}"')
    )
