"""JSON of a YANG model, read strictly: names with and without their module, numbers as numbers or as text."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from typing import Any

from ringlight.controller.optical.errors import ProtocolError


def bare(value: Any) -> Any:
    """Return a copy of a JSON value without the prefixes (models' names) of its keys, at all depths."""
    if isinstance(value, dict):
        return {
            str(name).rpartition(":")[2]: bare(child) for name, child in value.items()
        }
    return [bare(child) for child in value] if isinstance(value, list) else value


def bare_keys(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object without the prefixes of its own keys; the same object if there are none."""
    if not any(":" in name for name in value):
        return value
    return {name.rpartition(":")[2]: child for name, child in value.items()}


def branch(value: Any, *names: str) -> dict[str, Any]:
    """Return the container at this path; an empty container if it is missing.

    Raises ProtocolError if the value is not a container.
    """
    for name in names:
        value = value.get(name, {})
        if not isinstance(value, dict):
            raise ProtocolError(f"{name} is not a container", str(value))
    assert isinstance(value, dict)
    return value


def entries(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    rows = value.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ProtocolError(f"{name} is not a list", str(rows))
    return rows


def text(leaf: object, name: str) -> str:
    if not isinstance(leaf, str) or not leaf:
        raise ProtocolError(f"{name} is not a name", str(leaf))
    return leaf


def number(leaf: object, name: str) -> float:
    """Return a number from a number or its text. Raises ProtocolError."""
    if isinstance(leaf, str) and re.fullmatch(
        r"[+-]?\d{1,15}(\.\d{1,15})?", leaf, re.ASCII
    ):
        return float(leaf)
    if isinstance(leaf, int | float) and not isinstance(leaf, bool):
        with contextlib.suppress(OverflowError):
            if math.isfinite(leaf):
                return float(leaf)
    raise ProtocolError(f"{name} is not a number", str(leaf))
