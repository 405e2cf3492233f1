"""Put the values that arms, points of sweeps and --set give for dotted paths into a scenario file."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringlight.experiments.language.event_checks import circle_in
from ringlight.experiments.language.paths import like, put
from ringlight.experiments.language.spec import FileSpec
from ringlight.experiments.language.text import at_key

#: The arm of a file that has none.
BASE = "base"


#: Keys of an arm that are no paths.
_OF_ARMS = ("title", "like")


@dataclass(frozen=True)
class Override:
    """A value for a path, and the key under which the user wrote it."""

    path: str
    value: Any
    where: str
    of_point: bool = False


class Put:
    """The file with overrides put into it; what runs begin with in common is put there once."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._applied: dict[tuple[str, ...], dict[str, Any]] = {(): dict(raw)}

    def __call__(self, overrides: Sequence[Override]) -> dict[str, Any]:
        """Raises ValueError under the key where the user wrote the path."""
        key = tuple(override.where for override in overrides)
        if key not in self._applied:
            before, last = self(overrides[:-1]), overrides[-1]
            with at_key(last.where):
                self._applied[key] = put(before, last.path, last.value)
        return self._applied[key]


def under_override(
    problem: str,
    overrides: Sequence[Override],
    spec: FileSpec,
    arm: str,
    point: Mapping[str, Any],
) -> str:
    """Return a problem under the key where the user wrote the value, else with the arm and point that show it."""
    key, _, what = problem.partition(": ")
    for override in reversed(overrides):
        if is_set(key, [override.path]):
            return f"{override.where}{key.removeprefix(override.path)}: {what}"
    values = ", ".join(f"{path} = {value}" for path, value in point.items())
    run = f"arm {arm}" if spec.arms else "a run"
    return (
        f"{problem} (in {run}{f' where sweep has {values}' if values else ''})"
        if values or spec.arms
        else problem
    )


def overrides_of_arms(spec: FileSpec) -> dict[str, list[Override]]:
    """Return what each arm puts into the file, first that of the arm which it is like. Raises ValueError."""
    if not spec.arms:
        return {BASE: []}
    likes: dict[str, list[str]] = {}
    for name, arm in spec.arms.items():
        other = arm.get("like")
        if other is not None and other not in spec.arms:
            near = like(str(other), spec.arms)
            raise ValueError(
                f"arms.{name}.like: there is no arm {other}; the nearest is {near}"
            )
        if not isinstance(arm.get("title", ""), str):
            raise ValueError(
                f"arms.{name}.title: should be a text, not {arm['title']!r}"
            )
        likes[name] = [other] if other is not None else []
    circle = circle_in(likes)
    if circle:
        raise ValueError(
            f"arms.{circle[0]}.like: circular: {' is like '.join((*circle, circle[0]))}"
        )

    def overrides(name: str) -> list[Override]:
        own = [
            Override(path, value, f"arms.{name}.{path}")
            for path, value in spec.arms[name].items()
            if path not in _OF_ARMS
        ]
        return [*(o for other in likes[name] for o in overrides(other)), *own]

    return {name: overrides(name) for name in spec.arms}


def overrides_of_points(
    spec: FileSpec, arm: str, sets: Collection[str]
) -> list[list[Override]]:
    """Return the points of an arm's sweeps; one without values if it is not swept. Nothing is swept over what
    is set."""
    overrides: list[list[Override]] = []
    for number, sweep in enumerate(spec.sweep):
        over = [path for path in sweep.over if not is_set(path, sets)]
        if over and (sweep.arms is None or arm in sweep.arms):
            axes = [
                [
                    Override(path, value, f"sweep[{number}].over.{path}[{i}]", True)
                    for i, value in enumerate(sweep.over[path])
                ]
                for path in over
            ]
            overrides += [list(point) for point in itertools.product(*axes)]
    return overrides or [[]]


def is_set(path: str, sets: Collection[str]) -> bool:
    """Return whether a value for one of ``sets`` also sets ``path``."""
    return any(
        path == other or path.startswith((f"{other}.", f"{other}[")) for other in sets
    )
