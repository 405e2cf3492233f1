"""Programs of extensions that may write packet switches' tables, by what the fabric file calls them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ringlight.fabric.extension import loaders


@cache
def programs() -> Mapping[str, str]:
    """Return the names of the programs, by the word of the fabric file. Raises ExtensionError.

    A program without a word writes no tables.
    """
    words = {name: load().controller for name, load in loaders("processes").items()}
    return {word: name for name, word in words.items() if word is not None}
