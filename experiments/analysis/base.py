"""Figures at the values that a file has without arms and sweeps, but for what is asked otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from experiments.analysis.rows import Row
from experiments.language.expand import Experiment
from experiments.language.text import parse_yaml, resolved


class AtBase:
    """Of ``rows`` of an experiment."""

    def __init__(self, experiment: Experiment, rows: Sequence[Row]) -> None:
        self.experiment, self.all = experiment, rows
        self._raw = parse_yaml(experiment.text, experiment.path)
        self._values: dict[str, Any] = {}

    @cached_property
    def _index(self) -> Mapping[tuple[str, str], list[Row]]:
        found: dict[tuple[str, str], list[Row]] = {}
        for row in self.all:
            found.setdefault((row.arm, row.metric), []).append(row)
        return found

    def value(self, path: str) -> Any:
        """What the file has at a dotted path; None where it has nothing."""
        if path not in self._values:
            found: Any = self._raw
            for word in path.split("."):
                found = found.get(word) if isinstance(found, Mapping) else None
            self._values[path] = resolved(found, path, self._raw.get("parameters") or {})
        return self._values[path]

    def rows(self, arm: str, metric: str, **changed: Any) -> list[Row]:
        """An arm's figures of all repeats there; ``changed``: the ends of dotted paths with other values."""
        return [
            row
            for row in self._index.get((arm, metric), ())
            if row.repeat is None and self._is_there(row.point, changed)
        ]

    def _is_there(self, point: Mapping[str, Any], changed: Mapping[str, Any]) -> bool:
        asked = dict(changed)
        for path, value in point.items():
            wanted = asked.pop(path.rpartition(".")[2], None)
            if (value or None) != (self.value(path) or None if wanted is None else wanted):
                return False
        return not asked

    def at(
        self,
        arm: str,
        metric: str,
        changed: Mapping[str, Any],
        *,
        subject: str | None = None,
        published: bool = False,
    ) -> Row | None:
        """The first figure of all repeats where only these dotted paths have other values: of any subject
        where none is named, the run's own or the ``published`` one."""
        for row in self._index.get((arm, metric), ()):
            if subject not in (None, row.subject) or (row.label == "published") != published:
                continue
            there = {path: value for path, value in row.point.items() if path not in changed}
            said = {path: row.point.get(path) for path in changed}
            if row.repeat is None and said == changed and self._is_there(there, {}):
                return row
        return None

    def row(self, arm: str, metric: str, **changed: Any) -> Row | None:
        """The first of these."""
        return next(iter(self.rows(arm, metric, **changed)), None)

    def title(self, arm: str) -> str:
        """What tables call an arm."""
        return next(plan.title for plan in self.experiment.plans if plan.arm == arm)
