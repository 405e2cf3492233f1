"""A run folder: everything that an experiment leaves.

scenario.yaml  environment.json  events.jsonl  throughput.csv
result.json  rows.csv  plots/  report.html  logs/
"""

from __future__ import annotations

import csv
import io
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from experiments.language.text import ScenarioError
from experiments.record.events import Aborted, PortRate, Record, line_of
from experiments.record.writing import DISK_FULL, Lines, WriteError, write_json, write_whole, writing

_PORT_RATES = ("run", "t", "switch", "port", "gpu", "peer", "rx_bps", "tx_bps")


def new_folder(parent: Path, name: str) -> Path:
    """A new folder in ``parent``, called after the time and ``name``.

    Raises ScenarioError when there can be none, WriteError when the disk is full.
    """
    wanted = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    for number in range(1, 1000):
        path = parent / (wanted if number == 1 else f"{wanted}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno in DISK_FULL:
                raise WriteError(f"{path}: cannot be made: {error.strerror}") from None
            raise ScenarioError(f"{parent}: no run folder can be made there: {error.strerror}") from None
        return path
    raise ScenarioError(f"{parent}: too many run folders called {wanted}")


class RunFolder:
    """Writes a run folder while the experiment goes on; use as a context manager.

    ``environment`` is written to environment.json at the end, and whenever :meth:`describe` adds to it.
    Methods raise WriteError. When the experiment ends in an error, that is noted as far as the disk allows.
    """

    def __init__(self, parent: Path, name: str, text: str) -> None:
        self._began = time.monotonic()
        self.path = new_folder(parent, name)
        self.name = self.path.name
        self.logs = self.path / "logs"
        self.environment: dict[str, Any] = {"run": self.name}
        try:
            with writing(self.path):
                self.logs.mkdir()
            write_whole(self.path / "scenario.yaml", text)
            self._events = Lines(self.path / "events.jsonl")
            self._rates = Lines(self.path / "throughput.csv")
            self._rates.append(",".join(_PORT_RATES) + "\n")
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
                self.write([Aborted(t=time.monotonic(), reason=str(error) or type(error).__name__)])
            self.describe(duration_s=round(time.monotonic() - self._began, 3))
        except WriteError:
            # The error that ended the experiment is the one to be told.
            if error is None:
                raise
        finally:
            self._events.close()
            self._rates.close()

    def write(self, records: Iterable[Record]) -> None:
        """Append records; port rates, of which there are many, to a file of their own."""
        lines, rates = [], []
        for record in records:
            if isinstance(record, PortRate):
                rates.append(record)
            else:
                lines.append(line_of(record))
        if lines:
            self._events.append("".join(lines))
        if rates:
            self._rates.append(_csv(rates))

    def describe(self, **facts: Any) -> None:
        """Add facts to environment.json."""
        self.environment |= facts
        write_json(self.path / "environment.json", self.environment)


def _csv(rates: Sequence[PortRate]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([getattr(rate, column) for column in _PORT_RATES] for rate in rates)
    return text.getvalue()


def read_port_rates(path: Path) -> list[PortRate]:
    """The port rates of a throughput.csv. Raises OSError."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            PortRate(
                t=float(row["t"]),
                run=row["run"],
                switch=row["switch"],
                port=int(row["port"]),
                gpu=row["gpu"] or None,
                peer=row["peer"] or None,
                rx_bps=float(row["rx_bps"]),
                tx_bps=float(row["tx_bps"]),
            )
            for row in csv.DictReader(file)
        ]
