"""A run folder: everything that one run leaves, and the result and report made from it.

scenario.yaml  environment.json  events.jsonl  throughput.csv  utilisation.csv
result.json  plots/  report.html  logs/
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from scenarios.comparison import Comparison
from scenarios.comparison_results import build_comparison
from scenarios.records import read_lines, read_object, read_runs
from scenarios.results import build_result, utilisation_series
from scenarios.schema import Document, ScenarioError, read_text
from scenarios.study import Study, load_any

_THROUGHPUT = ("run", "t", "switch", "port", "gpu", "peer", "rx_bps", "tx_bps")
_UTILISATION = ("run", "t", "job", "gpu", "utilisation")


def new_folder(parent: Path, scenario: Document | Study, suffix: str = "") -> Path:
    """A new folder in ``parent``, called after the time and the scenario, with ``suffix``.

    Raises ScenarioError when there can be none.
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
            raise ScenarioError(f"{parent}: no run folder can be made there: {error.strerror}") from None
        else:
            return parent / name


class RunFolder:
    """Writes a run folder while the run goes on; use as a context manager."""

    def __init__(self, parent: Path, scenario: Document, suffix: str = "") -> None:
        self.path = new_folder(parent, scenario, suffix)
        self.name = self.path.name
        self.logs = self.path / "logs"
        self.logs.mkdir()
        (self.path / "scenario.yaml").write_text(scenario.text, encoding="utf-8")
        self._events: IO[str] = (self.path / "events.jsonl").open("w", encoding="utf-8")
        self._throughput: IO[str] = (self.path / "throughput.csv").open("w", encoding="utf-8", newline="")
        self._rows = csv.DictWriter(self._throughput, _THROUGHPUT, extrasaction="ignore")
        self._rows.writeheader()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._events.close()
        self._throughput.close()

    def event(self, event: str, **fields: Any) -> None:
        """Append an event of the runner's own; ``t`` is now unless given."""
        self.copy({"t": time.monotonic(), "event": event, **fields})

    def copy(self, event: Mapping[str, Any]) -> None:
        """Append an event of someone else as it is."""
        self._events.write(json.dumps(event, separators=(",", ":")) + "\n")
        self._events.flush()

    def samples(self, run: str, samples: Sequence[Mapping[str, Any]]) -> None:
        """Append throughput samples of a run."""
        self._rows.writerows({"run": run, **sample} for sample in samples)
        self._throughput.flush()

    def environment(self, environment: Mapping[str, Any]) -> None:
        write_json(self.path / "environment.json", environment)


def write_json(path: Path, value: object) -> None:
    """Written whole or not at all."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


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
    Raises ScenarioError, one line naming the file, when one of these is missing or broken.
    """
    scenario = load_any(path / "scenario.yaml")
    if isinstance(scenario, Study):
        from scenarios.study_runner import finish_study

        return finish_study(path, scenario)
    environment = read_object(path / "environment.json")
    events = read_lines(path / "events.jsonl")
    series = read_throughput(path / "throughput.csv")
    runs = read_runs(events)
    with (path / "utilisation.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.DictWriter(file, _UTILISATION)
        rows.writeheader()
        for run in runs:
            rows.writerows({"run": run.name, **row} for row in utilisation_series(run))
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
    (path / "report.html").write_text(html, encoding="utf-8")
    write_json(path / "result.json", result)
    return result
