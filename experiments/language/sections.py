"""Sections of a file: references replaced, and checked against their types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ringlight.experiments.language.model_keys import inside, keys_of, tagged
from ringlight.experiments.language.paths import NEAR, nearest_of
from ringlight.experiments.language.text import first_problem, references_in, resolved
from ringlight.fabric.values import Strict


def checked(
    kind: type[Strict], value: Any, written: Any, parameters: Any, where: str = ""
) -> Any:
    """Return a section as its type. Raises ValueError, ``key: what is wrong``."""
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        raise ValueError(
            first_problem(
                error,
                written,
                parameters,
                where,
                lambda location: near_key(kind, location),
            )
        ) from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def near_key(kind: Any, location: Sequence[str | int]) -> str:
    """Return the end of a message about an unknown key: the nearest key, or all keys if none is near.

    Of a section that is of several kinds, those of other kinds may be near.
    """
    other = kind
    for step in location[:-1]:
        kind, other = (
            tagged(kind, step) or inside(kind, step),
            inside(other, step) or other,
        )
    keys = keys_of(kind)
    for known in (keys, keys_of(other)):
        if near := nearest_of(str(location[-1]), known, NEAR):
            return near
    return f"; there are {', '.join(keys)}" if keys else ""


class Resolver:
    """``$name`` replaced, once for each section as written and what it refers to: most points of a sweep
    share most of the file."""

    def __init__(self) -> None:
        #: The sections themselves are kept, so that no other can get the identity of one of them.
        self._references: dict[int, tuple[Any, tuple[str, ...]]] = {}
        self._read: dict[tuple[int, str], tuple[Any, str]] = {}

    def __call__(self, written: Any, where: str, parameters: Any) -> tuple[Any, str]:
        """The section, and a text that tells it from others."""
        if id(written) not in self._references:
            self._references[id(written)] = (
                written,
                tuple(sorted(references_in(written))),
            )
        names = self._references[id(written)][1]
        key = (
            id(written),
            text_of([parameters.get(name) for name in names]) if names else "",
        )
        if key not in self._read:
            value = resolved(written, where, parameters)
            self._read[key] = (value, text_of(value))
        return self._read[key]


def text_of(value: Any) -> str:
    """Return a text that tells a value from others."""
    return json.dumps(value, default=str)
