"""The rows of an experiment by what they are of: where analysis and report look figures up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ringlight.experiments.analysis.rows import Row, defines, key_of
from ringlight.experiments.analysis.statistics import is_number

Point = Mapping[str, Any]


class At:
    """An arm at a point of its sweep, with its rows."""

    def __init__(self, arm: str, point: Point) -> None:
        self.arm, self.point = arm, point
        self._rows: dict[str, dict[str, list[Row]]] = {}

    def add(self, row: Row) -> None:
        self._rows.setdefault(row.metric, {}).setdefault(row.subject, []).append(row)

    def rows_of(self, subject: str, metric: str) -> Sequence[Row]:
        """Return the rows of a subject and metric, like :meth:`Table.rows_of`."""
        return self._rows.get(metric, {}).get(subject, ())

    def row(self, subject: str, metric: str, repeat: int | None = None) -> Row | None:
        """Return the row of a figure, by default over all repeats; None if there is no such row."""
        return next(
            (row for row in self.rows_of(subject, metric) if row.repeat == repeat), None
        )

    def value(
        self, subject: str, metric: str, repeat: int | None = None
    ) -> float | None:
        """Return the number of a figure in the unit of the metric; None if there is none."""
        row = self.row(subject, metric, repeat)
        return row.value if row is not None and is_number(row.value) else None

    def each(self, metric: str) -> Iterator[Row]:
        """Return the rows of a metric of all subjects, over all repeats."""
        subjects = self._rows.get(metric, {}).values()
        return (row for rows in subjects for row in rows if row.repeat is None)

    def defined(self, metric: str) -> Iterator[Row]:
        """Return the rows of a metric and its definitions, of all subjects, over all repeats."""
        return (
            row
            for name in self._rows
            if defines(name, metric)
            for row in self.each(name)
        )


class Table:
    """All rows, in their order, by arm and point."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)
        self._at: dict[tuple[str, str], At] = {}
        #: What is swept of each arm.
        self._paths: dict[str, dict[tuple[str, ...], None]] = {}
        for row in self.rows:
            key = row.arm, key_of(row.point)
            if key not in self._at:
                self._at[key] = At(row.arm, row.point)
                self._paths.setdefault(row.arm, {}).setdefault(tuple(sorted(row.point)))
            self._at[key].add(row)

    def __iter__(self) -> Iterator[At]:
        """Every arm at each of its points."""
        return iter(self._at.values())

    def rows_of(
        self, arm: str, point: Point, subject: str, metric: str
    ) -> Sequence[Row]:
        """Return the rows of a figure, over all repeats and of single repeats, whatever their label."""
        place = self._at.get((arm, key_of(point)))
        return () if place is None else place.rows_of(subject, metric)

    def of(self, arm: str) -> list[At]:
        """Return an arm at each of its points."""
        return [place for place in self if place.arm == arm]

    def each(self, arm: str, metric: str) -> Iterator[Row]:
        """Return the rows of a metric of an arm at each of its points, over all repeats."""
        return (row for place in self.of(arm) for row in place.each(metric))

    def under(self, arm: str, point: Point) -> At | None:
        """Return the baseline for another arm's point; None if there is none.

        The baseline is at the point with the most paths that all are in the other point. A path that is not
        swept there holds for all values.
        """
        for paths in sorted(self._paths.get(arm, ()), key=len, reverse=True):
            if all(path in point for path in paths):
                place = self._at.get(
                    (arm, key_of({path: point[path] for path in paths}))
                )
                if place is not None:
                    return place
        return None
