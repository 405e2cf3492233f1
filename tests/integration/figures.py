"""What a run left, looked up by name: rows of its result, and its records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringlight.experiments.analysis.rows import Row, Value, from_json
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.lines import read_records


class Figures:
    """Rows of a result.json, or of a part of it."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        self.rows = [
            row
            for row in from_json(result)
            if row.repeat is None and row.label != "published"
        ]

    def of(self, arm: str, subject: str, metric: str) -> Value:
        """The only one."""
        found = [
            row.value
            for row in self.rows
            if (row.arm, row.subject, row.metric) == (arm, subject, metric)
        ]
        assert len(found) == 1, f"{arm}, {subject}, {metric}: {found}"
        return found[0]

    def number(self, arm: str, subject: str, metric: str) -> float:
        value = self.of(arm, subject, metric)
        assert isinstance(value, int | float)
        assert not isinstance(value, bool)
        return value

    def all(self, metric: str) -> list[Row]:
        """Rows of a metric for all arms, points and subjects."""
        return [row for row in self.rows if row.metric == metric]

    def assert_exact(self, jobs: int, workloads: int = 0) -> None:
        """So many jobs succeeded; each ended, bit by bit, as one process does. ``workloads``: of these, jobs
        whose results were compared on the way."""
        states, exact = self.all("state"), self.all("parameters_identical")
        assert [row.value for row in states if row.value == "SUCCEEDED"] == [
            "SUCCEEDED"
        ] * jobs
        assert [row.value for row in exact] == [True] * (jobs - workloads)


def records_of(
    folder: Path, kind: type[Record], run: str | None = None
) -> list[Record]:
    """The records of one kind in a run folder, of all runs or one."""
    return [
        record
        for record in read_records(folder / "events.jsonl")
        if type(record) is kind and (run is None or record.run == run)
    ]
