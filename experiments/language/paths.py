"""Dotted paths into a scenario file, such as ``fabric.links[3].rate``, in arms and sweeps.

An event is ``events.NAME``, by its name or its number from 1."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ringlight.experiments.language.model_keys import (
    EITHER,
    inside,
    keys_of,
    may_be_made,
)
from ringlight.experiments.language.spec import FileSpec, RunSpec
from ringlight.experiments.language.text import joined

#: What a file says of its scale where a machine is to choose it.
AUTO = "auto"
#: Similarity from which on a word may be another one misspelt, as ``difflib`` has it.
NEAR = 0.6
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_PATH = re.compile(r"[^.\[\]]+(\.[^.\[\]]+|\[\d+\])*")


def split(path: str) -> tuple[str | int, ...]:
    """Return the keys and positions of a path. Raises ValueError with what is wrong with it."""
    if not _PATH.fullmatch(path):
        raise ValueError(
            "not a dotted path, such as jobs.red.ranks or fabric.links[3].rate"
        )
    return tuple(
        int(match[2]) if match[2] else match[1] for match in _STEP.finditer(path)
    )


def put(raw: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return ``raw`` with a value at a path; nothing else is copied or changed.

    Only the last key may be new, or a section that may be left out. Raises ValueError with what is wrong with
    the path and the nearest right one.
    """
    steps = split(path)
    if steps[0] not in keys_of(RunSpec) and steps[0] in keys_of(FileSpec):
        raise ValueError(
            f"{steps[0]} is the same in all runs; these differ: {', '.join(keys_of(RunSpec))}"
        )
    changed: dict[str, Any] = _put(raw, steps, value, RunSpec, raw, ())
    return changed


def _put(
    here: Any,
    steps: Sequence[str | int],
    value: Any,
    kind: Any,
    raw: Mapping[str, Any],
    before: tuple[str | int, ...],
) -> Any:
    first, rest = steps[0], steps[1:]
    place = (*before, first)
    if here == AUTO and before == ("scale",):
        # What the machine would choose gives way as a whole.
        here = {}
    if isinstance(here, str) and here.startswith("$"):
        raise ValueError(
            f"{joined(before)} is {here}; the path to that is parameters.{here[1:]}.value"
        )
    if isinstance(here, list):
        index = _position(here, first, named=before == ("events",))
        if index is None:
            raise _no_such(raw, (*before, *steps), place)
        entry = (
            _put(here[index], rest, value, inside(kind, 0), raw, place)
            if rest
            else value
        )
        return [*here[:index], entry, *here[index + 1 :]]
    if not isinstance(here, Mapping) or isinstance(first, int):
        raise _no_such(raw, (*before, *steps), place)
    known = keys_of(kind)
    if first not in here and (
        (known and first not in known) or (rest and not may_be_made(kind, first))
    ):
        raise _no_such(raw, (*before, *steps), place)
    changed = (
        _put(here.get(first, {}), rest, value, inside(kind, first), raw, place)
        if rest
        else value
    )
    kept = {key: old for key, old in here.items() if rest or key != EITHER.get(first)}
    return {**kept, first: changed}


def _position(entries: list[Any], step: str | int, *, named: bool) -> int | None:
    """Index in a list that a step leads to: that of a name, or a number counted from 1."""
    if isinstance(step, int):
        return step if step < len(entries) else None
    return (
        next((i for i, name in enumerate(names_of(entries)) if name == step), None)
        if named
        else None
    )


def names_of(entries: Iterable[Any]) -> list[str]:
    """Return the names of events as written: their own, or their numbers from 1."""
    return [
        str(entry.get("name") or number) if isinstance(entry, Mapping) else str(number)
        for number, entry in enumerate(entries, start=1)
    ]


def _no_such(
    raw: Mapping[str, Any], steps: Sequence[str | int], place: Sequence[str | int]
) -> ValueError:
    what = "unknown key" if len(place) == len(steps) else f"there is no {joined(place)}"
    near = nearest(raw, steps)
    return ValueError(f"{what}; the nearest is {near}" if near else what)


def nearest(raw: Mapping[str, Any], steps: Sequence[str | int]) -> str:
    """Return the path most like a wrong one: at each step the key itself, or the one most like it."""
    here: Any = raw
    kind: Any = RunSpec
    right: list[str | int] = []
    for step in steps:
        if isinstance(here, list) and isinstance(step, int):
            if not here:
                break
            right.append(min(step, len(here) - 1))
            here, kind = here[right[-1]], inside(kind, 0)  # type: ignore[index]
            continue
        names = names_of(here) if isinstance(here, list) and right == ["events"] else []
        keys = names or [*(here if isinstance(here, Mapping) else ()), *keys_of(kind)]
        if right == []:
            keys = list(keys_of(RunSpec))
        key = like(str(step), keys)
        if key is None:
            break
        right.append(key)
        if names:
            here, kind = here[names.index(key)], inside(kind, 0)
        else:
            here, kind = (
                here.get(key) if isinstance(here, Mapping) else None,
                inside(kind, key),
            )
    return joined(right)


def like(word: str, words: Iterable[str], least: float = 0.0) -> str | None:
    """Return the word most like ``word``, or ``word`` itself if it is among them.

    Return None if none has a similarity of at least ``least``, from 0 to 1.
    """
    keys = [str(key) for key in words]
    return (
        word
        if word in keys
        else next(iter(difflib.get_close_matches(word, keys, 1, least)), None)
    )


def check_known(where: str, what: str, name: str, names: Collection[str]) -> None:
    """Raise ValueError, with the nearest right name, for a name that is not among these."""
    if name not in names:
        raise ValueError(f"{where}: there is no {what} {name}{nearest_of(name, names)}")


def nearest_of(name: str, names: Iterable[str], least: float = 0.0) -> str:
    """Return the end of a message that gives the nearest of these names, as :func:`like` finds it; "" if
    there is none."""
    near = like(name, names, least)
    return f"; the nearest is {near}" if near else ""
