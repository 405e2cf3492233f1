"""Programs of extensions that may write packet switches' tables, by what the fabric file calls them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ringlight.fabric.extension import extensions


@cache
def programs() -> Mapping[str, str]:
    """Return the names of the programs, by the word of the fabric file. Raises ExtensionError."""
    return {
        installed.load(value).controller: name
        for installed in extensions()
        for name, value in installed.extension.processes.items()
    }
