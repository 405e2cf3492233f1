"""Names for nodes here of names elsewhere, which may be longer or have other characters."""

from __future__ import annotations

import re

_FITTING = re.compile(r"[a-z][a-z0-9-]{0,11}")


class GivenNames:
    """Names that nodes have been given so far, each once. ``renamed``: by ours, those that are not the file's."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.renamed: dict[str, str] = {}
        self._next: dict[str, int] = {}

    def take(self, foreign: str, prefix: str) -> str:
        """Return a free name: ``foreign`` itself, a form of it that fits, or ``prefix`` and a number."""
        cleaned = re.sub(r"[^a-z0-9-]+", "-", foreign.lower()).strip("-")
        for name in (foreign, cleaned):
            if _FITTING.fullmatch(name) and name not in self.taken:
                break
        else:
            name = self.numbered(prefix)
        self.taken.add(name)
        if name != foreign:
            self.renamed[name] = foreign
        return name

    def numbered(self, prefix: str) -> str:
        """Return ``prefix`` with the first number that makes a free name of it, and take that name."""
        number = self._next.get(prefix, 0)
        while f"{prefix}{number}" in self.taken:
            number += 1
        self._next[prefix] = number + 1
        self.taken.add(f"{prefix}{number}")
        return f"{prefix}{number}"
