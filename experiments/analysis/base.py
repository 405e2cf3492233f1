"""Figures at the values that a file has without arms and sweeps, but for what is asked otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from experiments.analysis.rows import Row
from experiments.language.expand import Experiment
from experiments.language.text import parse_yaml, resolved

AS_WRITTEN: Mapping[str, Any] = {}


class AtBase:
    """Of ``rows`` of an experiment."""

    def __init__(self, experiment: Experiment, rows: Sequence[Row]) -> None:
        self.experiment, self.all, self.titles = experiment, rows, experiment.titles
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

    def at(
        self,
        arm: str,
        metric: str,
        changed: Mapping[str, Any] = AS_WRITTEN,
        *,
        subject: str | None = None,
        published: bool = False,
    ) -> Row | None:
        """The first figure of all repeats where only these dotted paths have other values: of any subject
        where none is named, the run's own or the ``published`` one."""
        for row in self._index.get((arm, metric), ()):
            if subject not in (None, row.subject) or (row.label == "published") != published:
                continue
            if row.repeat is None and changed.items() <= row.point.items() and self._is_there(row, changed):
                return row
        return None

    def _is_there(self, row: Row, changed: Mapping[str, Any]) -> bool:
        # An empty section is as good as none.
        return all(
            path in changed or value == (own := self.value(path)) or (value == {} and own is None)
            for path, value in row.point.items()
        )
