"""Reads a report's page as a browser would, for the tests of all kinds of report."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "hr", "input", "link"}


class Page(HTMLParser):
    """Checks that tags nest, collects ids, links and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.sources: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(
        self, tag: str, attributes: list[tuple[str, str | None]]
    ) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self._note(attributes)

    def handle_startendtag(
        self, tag: str, attributes: list[tuple[str, str | None]]
    ) -> None:
        self._note(attributes)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def _note(self, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id":
                self.ids.append(str(value))
            if name in ("src", "href", "xlink:href"):
                self.sources.append(str(value))


def text_of(page: Page) -> str:
    return " ".join(" ".join(page.words).split())


def check_alone(text: str) -> None:
    """The page needs no other file, no script and no network, and its inner links lead somewhere."""
    page = Page(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert all(source.startswith("#") for source in page.sources)
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text
    assert "<script" not in text
    for source in page.sources:
        assert source[1:] in page.ids
