"""Patterns of names and paths, in words for people."""

from __future__ import annotations

import re

_NAME = re.compile(r"\^\[a-z\]\[a-z0-9([-_])\](?:\*|\{0,(\d+)\})\$")
_BEGINS = re.compile(r"\^((?:/[a-z]*)+)")
_DIGITS = re.compile(r"\^\[0-9a-f\]\{(\d+)\}\$")


def in_words(pattern: str) -> str:
    """Return what a text must be to match a pattern; ``should match PATTERN`` if the pattern is not known."""
    if (name := _NAME.fullmatch(pattern)) is not None:
        mark = {"-": "hyphens", "_": "underscores"}[name[1]]
        length = (
            "" if name[2] is None else f", of at most {int(name[2]) + 1} characters"
        )
        return f"should be lower-case letters, digits and {mark}, beginning with a letter{length}"
    if (begins := _BEGINS.fullmatch(pattern)) is not None:
        return f"should begin with {begins[1]}"
    if (digits := _DIGITS.fullmatch(pattern)) is not None:
        return f"should be {digits[1]} hexadecimal digits in lower case"
    return f"should match {pattern}"
