"""A run folder: everything that one run leaves, and the result and report made from it.

scenario.yaml  environment.json  events.jsonl  throughput.csv  utilisation.csv
result.json  plots/  report.html  logs/
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from experiments.language.text import ScenarioError, read_text
from experiments.record.events import Record
from experiments.record.writing import DISK_FULL, Lines, WriteError, write_json, write_whole, writing
from scenarios.comparison import Comparison
from scenarios.comparison_results import build_comparison
from scenarios.records import read_lines, read_object, read_runs
from scenarios.results import build_result, utilisation_series
from scenarios.schema import Document
from scenarios.study import Study, load_any

_THROUGHPUT = ("run", "t", "switch", "port", "gpu", "peer", "rx_bps", "tx_bps")
_UTILISATION = ("run", "t", "job", "gpu", "utilisation")


def new_folder(parent: Path, scenario: Document | Study, suffix: str = "") -> Path:
    """A new folder in ``parent``, called after the time and the scenario, with ``suffix``.

    Raises ScenarioError when there can be none, WriteError when the disk is full.
    """
    wanted = f"{time.strftime('%Y%m%d-%H%M%S')}-{scenario.spec.name}{suffix}"
    name, number = wanted, 1
    while True:
        try:
            (parent / name).mkdir(parents=True)
        except FileExistsError:
            number += 1
            name = f"{wanted}-{number}"
        except OSError as error:
            if error.errno in DISK_FULL:
                raise WriteError(f"{parent / name}: cannot be made: {error.strerror}") from None
            raise ScenarioError(f"{parent}: no run folder can be made there: {error.strerror}") from None
        else:
            return parent / name


class RunFolder:
    """Writes a run folder while the run goes on; use as a context manager.

    ``environment`` is written to environment.json at the end, and whenever :meth:`describe` adds to it.
    Methods raise WriteError. When the run ends in an error, that is noted as far as the disk allows.
    """

    def __init__(self, parent: Path, scenario: Document, suffix: str = "") -> None:
        self._began = time.monotonic()
        self.path = new_folder(parent, scenario, suffix)
        self.name = self.path.name
        self.logs = self.path / "logs"
        self.environment: dict[str, Any] = {"run": self.name}
        try:
            with writing(self.path):
                self.logs.mkdir()
            write_whole(self.path / "scenario.yaml", scenario.text)
            self._events = Lines(self.path / "events.jsonl")
            self._throughput = Lines(self.path / "throughput.csv")
            self._throughput.append(_csv(_THROUGHPUT, (), head=True))
        except BaseException:
            # Nothing has happened yet that a person could want to read.
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self.event("aborted", reason=str(error) or type(error).__name__)
            self.describe(duration_s=round(time.monotonic() - self._began, 3))
        except WriteError:
            # The error that ended the run is the one to be told.
            if error is None:
                raise
        finally:
            self._events.close()
            self._throughput.close()

    def event(self, event: str, **fields: Any) -> None:
        """Append an event of the runner's own; ``t`` is now unless given."""
        self.copy({"t": time.monotonic(), "event": event, **fields})

    def copy(self, event: Mapping[str, Any]) -> None:
        """Append an event of someone else as it is."""
        self._events.append(json.dumps(event, separators=(",", ":")) + "\n")

    def record(self, record: Record) -> None:
        """Append a typed event; what it does not have is left out."""
        fields = {key: value for key, value in vars(record).items() if value not in (None, "")}
        self.copy({"t": record.t, "event": record.event, **fields})

    def samples(self, run: str, samples: Sequence[Mapping[str, Any]]) -> None:
        """Append throughput samples of a run."""
        self._throughput.append(_csv(_THROUGHPUT, ({"run": run, **sample} for sample in samples)))

    def describe(self, **facts: Any) -> None:
        """Add facts to environment.json."""
        self.environment |= facts
        write_json(self.path / "environment.json", self.environment)


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, head: bool = False) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore")
    if head:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_throughput(path: Path) -> list[dict[str, Any]]:
    """Samples of throughput.csv with numbers as numbers; empty cells are None."""
    return [
        {
            **row,
            "t": float(row["t"]),
            "port": int(row["port"]),
            "gpu": row["gpu"] or None,
            "peer": row["peer"] or None,
            "rx_bps": float(row["rx_bps"]),
            "tx_bps": float(row["tx_bps"]),
        }
        for row in csv.DictReader(read_text(path).splitlines())
    ]


def finish(path: Path) -> dict[str, Any]:
    """Compute result.json, the utilisation series, plots and report of a run folder; returns the result.

    May be repeated: everything is made anew from the scenario, environment, events and throughput files.
    Raises ScenarioError, one line naming the file, when one of these is missing or broken, and WriteError.
    """
    with writing(path, f"make room, then: ringlight report {path}"):
        return _finish(path)


def _finish(path: Path) -> dict[str, Any]:
    scenario = load_any(path / "scenario.yaml")
    if isinstance(scenario, Study):
        from scenarios.study_runner import finish_study

        return finish_study(path, scenario)
    environment = read_object(path / "environment.json")
    events = read_lines(path / "events.jsonl")
    series = read_throughput(path / "throughput.csv")
    runs = read_runs(events)
    rows = ({"run": run.name, **row} for run in runs for row in utilisation_series(run))
    write_whole(path / "utilisation.csv", _csv(_UTILISATION, rows, head=True))
    # Drawing is heavy to import and only needed here.
    if isinstance(scenario, Comparison):
        from scenarios import comparison_plots, comparison_report, perfetto

        result = build_comparison(scenario, events, series, environment)
        drawn = comparison_plots.draw_all(scenario, runs, result, path / "plots")
        html = comparison_report.render(scenario, result, environment, drawn)
        perfetto.write_trace(path / "trace.json", scenario, runs)
    else:
        from scenarios import plots, report

        result = build_result(scenario, events, series, environment)
        drawn = plots.draw_all(scenario, runs, series, path / "plots")
        html = report.render(scenario, result, environment, drawn)
    write_whole(path / "report.html", html)
    write_json(path / "result.json", result)
    return result
