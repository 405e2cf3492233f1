"""A run folder: everything that an experiment leaves.

scenario.yaml  environment.json  events.jsonl  throughput.csv  files that the scenario names
result.json  rows.csv  plots/  report.html  logs/
"""

from __future__ import annotations

import csv
import filecmp
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.plan import ChosenScale
from ringlight.experiments.language.text import SCENARIO_BYTES, ScenarioError, read_text
from ringlight.experiments.record.events import Aborted, Record, RunEnded
from ringlight.experiments.record.lab_records import PortRate
from ringlight.experiments.record.lines import line_of, read_records
from ringlight.experiments.record.writing import (
    DISK_FULL,
    Lines,
    WriteError,
    write_json,
    write_whole,
    writing,
)
from ringlight.fabric.text import parse_json


def _or_none(written: str) -> str | None:
    return written or None


#: The columns of throughput.csv, and how each is read.
_PORT_RATES: Mapping[str, Callable[[str], Any]] = {
    "run": str,
    "t": float,
    "switch": str,
    "port": int,
    "gpu": _or_none,
    "peer": _or_none,
    "rx_bps": float,
    "tx_bps": float,
}


def new_folder(parent: Path, name: str) -> Path:
    """Create a folder in ``parent``, named after the time and ``name``. Return its path.

    Raises ScenarioError if the folder cannot be created, WriteError if the disk is full.
    """
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    for number in range(1, 1000):
        path = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno in DISK_FULL:
                raise WriteError(f"{path}: cannot be made: {error.strerror}") from None
            raise ScenarioError(
                f"{parent}: no run folder can be made there: {error.strerror}"
            ) from None
        return path
    raise ScenarioError(f"{parent}: too many run folders called {stem}")


class RunFolder:
    """Writes a run folder while the experiment goes on; use as a context manager.

    ``environment`` is written to environment.json at the end, and whenever :meth:`describe` adds to it.
    Methods raise WriteError. When the experiment ends in an error, that is noted as far as the disk allows.
    """

    def __init__(self, path: Path, environment: Mapping[str, Any]) -> None:
        self._began = time.monotonic()
        self.path = path
        self.name = path.name
        self.logs = path / "logs"
        self.environment: dict[str, Any] = {**environment, "run": self.name}
        self._events = Lines(path / "events.jsonl")
        try:
            self._rates = Lines(path / "throughput.csv")
        except BaseException:
            self._events.close()
            raise

    @classmethod
    def new(
        cls,
        parent: Path,
        name: str,
        text: str,
        files: Sequence[str] = (),
        source: Path = Path(),
    ) -> RunFolder:
        """Create a folder below ``parent`` for the scenario file ``text``. Return the run folder.

        The ``files`` that the scenario names are below ``source`` and are copied.
        """
        path = new_folder(parent, name)
        try:
            with writing(path):
                (path / "logs").mkdir()
            write_whole(path / "scenario.yaml", text)
            for file in files:
                _copy(source / file, path / file)
            write_whole(path / "throughput.csv", ",".join(_PORT_RATES) + "\n")
            return cls(path, {})
        except BaseException:
            # Nothing has happened yet that a person could want to read.
            shutil.rmtree(path, ignore_errors=True)
            raise

    @classmethod
    def again(cls, path: Path) -> RunFolder:
        """Return an interrupted run folder, after removing the records of runs that did not end.

        Raises ScenarioError.
        """
        environment = read_json(path / "environment.json")
        records = read_records(path / "events.jsonl")
        whole = {record.run for record in records if isinstance(record, RunEnded)}
        kept = [record for record in records if not record.run or record.run in whole]
        write_whole(path / "events.jsonl", "".join(line_of(record) for record in kept))
        rates = [
            rate
            for rate in read_port_rates(path / "throughput.csv")
            if rate.run in whole
        ]
        write_whole(path / "throughput.csv", ",".join(_PORT_RATES) + "\n" + _csv(rates))
        return cls(path, environment)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                self.write(
                    [
                        Aborted(
                            t=time.monotonic(),
                            reason=str(error) or type(error).__name__,
                        )
                    ]
                )
            before_s = self.environment.get("duration_s", 0.0)
            self.describe(
                duration_s=round(before_s + time.monotonic() - self._began, 3)
            )
        except WriteError:
            # The error that ended the experiment is the one to be told.
            if error is None:
                raise
        finally:
            self._events.close()
            self._rates.close()

    def write(self, records: Iterable[Record]) -> None:
        """Append records; port rates, of which there are many, to a file of their own."""
        records = list(records)
        self._events.append(
            "".join(
                line_of(record)
                for record in records
                if not isinstance(record, PortRate)
            )
        )
        self._rates.append(
            _csv([record for record in records if isinstance(record, PortRate)])
        )

    def describe(self, **facts: Any) -> None:
        """Add facts to environment.json."""
        self.environment |= facts
        write_json(self.path / "environment.json", self.environment)


def _copy(source: Path, path: Path) -> None:
    """Copy a file, and read the copy back. The same people may read it.

    Raises WriteError, and ScenarioError if the source is missing.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Nobody else reads it before its mode says that they may.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            shutil.copyfile(source, path)
            path.chmod(source.stat().st_mode & 0o777)
        except OSError as error:
            if error.filename == str(source):
                raise ScenarioError(
                    f"{source}: cannot be read: {error.strerror}"
                ) from None
            raise
        if not filecmp.cmp(source, path, shallow=False):
            raise WriteError(f"{path}: it was not written as it is in {source}")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file. Raises ScenarioError naming the file."""
    try:
        document = parse_json(read_text(path))
    except json.JSONDecodeError:
        raise ScenarioError(f"{path}: it is not JSON") from None
    except RecursionError:
        raise ScenarioError(f"{path}: it is nested too deep") from None
    if not isinstance(document, dict):
        raise ScenarioError(f"{path}: it is no JSON object")
    return document


def environment_of(folder: Path) -> dict[str, Any]:
    """Return environment.json of a run folder. Raises ScenarioError if the folder is not a run folder."""
    file = folder / "environment.json"
    if not file.exists():
        raise ScenarioError(f"{folder}: not a run folder: it has no environment.json")
    return read_json(file)


def experiment_of(path: Path) -> Experiment:
    """Return the experiment of a run folder, with the requested repeats and values. Raises ScenarioError."""
    environment = environment_of(path)
    file = path / "scenario.yaml"
    repeat, sets = environment.get("repeat"), environment.get("sets") or ()
    scale = chosen_scale(environment)
    scale_for = None if scale is None else lambda _: scale
    return parse(
        read_text(file, SCENARIO_BYTES),
        str(file),
        repeat=repeat,
        sets=sets,
        scale_for=scale_for,
        auto=scale is not None,
    )


def chosen_scale(environment: Mapping[str, Any]) -> ChosenScale | None:
    """Return the scale that was chosen for a run folder's runs; None if their file states the scale."""
    scale = environment.get("chosen_scale")
    return None if scale is None else ChosenScale.model_validate(scale)


def _csv(rates: Sequence[PortRate]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(
        [getattr(rate, column) for column in _PORT_RATES] for rate in rates
    )
    return text.getvalue()


def read_port_rates(path: Path) -> list[PortRate]:
    """Return the port rates of a throughput.csv; a last line that a crash cut short is left out.

    Raises ScenarioError naming the file.
    """
    rows = list(csv.DictReader(read_text(path).splitlines()))
    whole = rows if not rows or rows[-1].get("tx_bps") else rows[:-1]
    try:
        return [
            PortRate(**{name: read(row[name]) for name, read in _PORT_RATES.items()})
            for row in whole
        ]
    except (KeyError, TypeError, ValueError):
        raise ScenarioError(f"{path}: it is not as ringlight writes it") from None
