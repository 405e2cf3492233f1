"""Find links of a built site that lead nowhere, and files that it would fetch from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """Collects the ids of a page, and the addresses of what it links to and of what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.update(values[name] for name in ("id", "name") if name in values)
        if "href" in values:
            (self.links if tag == "a" else self.loaded).append(values["href"])
        if "src" in values:
            self.loaded.append(values["src"])


def broken(site: Path) -> Iterator[str]:
    """Yield a line for each link without a target, and for each address that a page would load elsewhere."""
    # The theme leaves a template among its files.
    files = (path for path in site.rglob("*.html") if "_static" not in path.parts)
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in files}
    for path, page in sorted(pages.items()):
        name = path.relative_to(site)
        yield from (f"{name}: loads {url}" for url in page.loaded if _is_elsewhere(url))
        for url in dict.fromkeys((*page.links, *page.loaded)):
            if not _is_elsewhere(url) and not _leads(path, url, pages):
                yield f"{name}: {url} leads nowhere"


def _is_elsewhere(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def _leads(path: Path, url: str, pages: dict[Path, _Page]) -> bool:
    parts = urlsplit(url)
    if parts.scheme:
        return True
    target = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
    anchor = unquote(parts.fragment)
    if target in pages:
        return not anchor or anchor in pages[target].ids
    return target.is_file()
