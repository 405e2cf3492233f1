"""Look up figures at the values that a file has apart from its arms and sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlight.experiments.analysis.rows import Row
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.analysis.table import Table
from ringlight.experiments.language.expand import Experiment, with_sets
from ringlight.experiments.language.text import parse_yaml, read_sets, resolved

AS_WRITTEN: Mapping[str, Any] = {}


class AtBase:
    """Lookup of an experiment's rows at the values of its file, except for paths given otherwise."""

    def __init__(self, experiment: Experiment, table: Table) -> None:
        self.experiment, self.table, self.titles = experiment, table, experiment.titles
        self._raw = with_sets(
            parse_yaml(experiment.text, experiment.path), read_sets(experiment.sets)
        )
        self._values: dict[str, Any] = {}

    def value(self, path: str) -> Any:
        """Return what the file has at a dotted path, with its parameters resolved; None if the file has
        nothing there."""
        if path not in self._values:
            value: Any = self._raw
            for word in path.split("."):
                value = value.get(word) if isinstance(value, Mapping) else None
            self._values[path] = resolved(
                value, path, self._raw.get("parameters") or {}
            )
        return self._values[path]

    def row_at(
        self,
        arm: str,
        metric: str,
        changed: Mapping[str, Any] = AS_WRITTEN,
        *,
        subject: str | None = None,
        published: bool = False,
    ) -> Row | None:
        """Return the first row of ``metric`` over all repeats at a point that differs from the file only by
        ``changed``.

        The row may be of any subject if ``subject`` is None. It is the published row if ``published`` is set,
        else the run's own. None if there is no such row.
        """
        for place in self.table.of(arm):
            if changed.items() <= place.point.items() and self._is_there(
                place.point, changed
            ):
                for row in place.each(metric):
                    if (
                        subject in (None, row.subject)
                        and (row.label == "published") == published
                    ):
                        return row
        return None

    def number(
        self, arm: str, metric: str, changed: Mapping[str, Any] = AS_WRITTEN
    ) -> float | None:
        """Return the number of the run's own row that :meth:`at` finds, in the unit of the metric; None if
        there is no number."""
        row = self.row_at(arm, metric, changed)
        return row.value if row is not None and is_number(row.value) else None

    def along(self, arm: str, metric: str, *paths: str) -> dict[Any, float]:
        """Return an arm's own numbers by the value of a swept path, which is the first of ``paths`` that
        is swept."""
        number_of = {}
        for row in self.table.each(arm, metric):
            values = [row.point[path] for path in paths if path in row.point]
            if values and row.label != "published" and is_number(row.value):
                number_of[values[0]] = row.value
        return number_of

    def _is_there(self, point: Mapping[str, Any], changed: Mapping[str, Any]) -> bool:
        # An empty section is as good as none.
        return all(
            path in changed
            or value == (own := self.value(path))
            or (value == {} and own is None)
            for path, value in point.items()
        )
