"""Results of a study's runs: rows, a data frame, pictures."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ringlight.experiments.analysis.rows import (
    Row,
    Value,
    from_json,
    key_of,
    only_value,
)
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.scripting.added import AddedMethods

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Metrics of a notebook's table, those that there are.
_SHOWN = ("jct", "iteration", "allreduce", "exchange", "gpu_utilisation")


@dataclass(frozen=True)
class Figures:
    """Rows of results: every figure, with its unit (``experiments.analysis.rows.Row``)."""

    rows: tuple[Row, ...]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the names of the metrics that there are."""
        return tuple(dict.fromkeys(row.metric for row in self.rows))

    def frame(
        self,
        library: Literal["pandas", "polars"] = "pandas",
        *,
        metric: str | None = None,
        job: str | None = None,
    ) -> Any:
        """Return the rows as a data frame, one figure each, with the columns of rows.csv.

        ``metric``: only the rows of this metric that :meth:`Runs.plot` draws, whose values are numbers;
        ``job``: only of this job. Raises ScenarioError naming the metrics or jobs that there are, or if the
        library is not installed.
        """
        from ringlight.experiments.analysis.rows import frame, polars_frame

        rows = self.rows if metric is None else self.drawn(metric, job)
        return frame(rows) if library == "pandas" else polars_frame(rows)

    def drawn(self, metric: str, job: str | None = None) -> Sequence[Row]:
        """Return the rows of a metric that are measured or simulated, of all repeats together.

        ``job``: only of this job. If no row is measured or simulated, the rows of the first label are
        returned. Raises ScenarioError naming the metrics or jobs that there are.
        """
        rows = [row for row in self.rows if row.metric == metric and row.repeat is None]
        if not rows:
            raise ScenarioError(
                f"metric: there is no {metric}; there are {', '.join(self.metrics)}"
            )
        if job is not None:
            jobs = sorted({row.subject.partition(" ")[2] for row in rows})
            rows = [row for row in rows if row.subject == f"job {job}"]
            if not rows:
                raise ScenarioError(
                    f"job: {metric} has no {job}; there are {', '.join(jobs)}"
                )
        label = next(
            (row.label for row in rows if row.label in ("measured", "simulated")),
            rows[0].label,
        )
        return [row for row in rows if row.label == label]

    def value(self, metric: str, **where: Any) -> Value:
        """Return the only value of a metric, such as ``value("jct", job="red", arm="regrouped")``.

        Times are in seconds, rates in bits per second. ``where``: fields of rows; ``job="red"`` is short for
        ``subject="job red"``. Of several repeats the row of all counts unless ``repeat`` is given, and a
        paper's figure counts only with ``label="published"``. Raises LookupError listing the rows that there
        are, unless exactly one row matches.
        """
        if "job" in where:
            where["subject"] = f"job {where.pop('job')}"
        rows = [
            row for row in self.rows if "label" in where or row.label != "published"
        ]
        return only_value(rows, metric, **{"repeat": None, **where})


@dataclass(frozen=True, repr=False)
class Runs(Figures, AddedMethods):
    """Results of runs that are in a folder.

    ``path``: run folder. ``result``: object of result.json. ``failures``: a line for each run that failed.
    """

    path: Path
    result: Mapping[str, Any] = field(repr=False)
    failures: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Runs({self.path}, {len(self.rows)} rows, {self.verdict})"

    @property
    def verdict(self) -> str:
        """Return whether to believe the figures: good, doubtful or bad; simulated for a simulation."""
        return str(self.result.get("fidelity", {}).get("verdict", "simulated"))

    @property
    def report(self) -> Path:
        """Return the path of the report, one HTML file."""
        return self.path / "report.html"

    def plot(
        self,
        metric: str,
        by: str = "arm",
        *,
        along: str | None = None,
        job: str | None = None,
    ) -> Figure:
        """Return a picture of a metric: a line for each value of ``by`` along a swept path, else bars.

        ``by``: arm, job, or the dotted path of what was swept. ``along``: swept path of the x axis; that with
        most values if left out. ``job``: only of this job. Raises ScenarioError naming the metrics, or the
        swept paths, that there are.
        """
        from ringlight.experiments.scripting.pictures import picture

        return picture(self.drawn(metric, job), metric, by, along)

    def picture(self, name: str) -> Any:
        """Return a picture of the report, for a notebook; needs IPython.

        Raises ScenarioError naming the pictures that there are, or if IPython is not installed.
        """
        try:
            from IPython.display import SVG
        except ImportError:
            raise ScenarioError(
                "IPython is not installed; install it with: pip install jupyter"
            ) from None

        files = {
            file.stem: file for file in sorted((self.path / "plots").glob("*.svg"))
        }
        if name not in files:
            raise ScenarioError(
                f"picture: there is no {name}; there are {', '.join(files)}"
            )
        return SVG(filename=str(files[name]))

    def _repr_html_(self) -> str:
        """Return a table of the main metrics, by arm and job, for a notebook."""
        shown = [metric for metric in _SHOWN if metric in self.metrics] or list(
            self.metrics[:5]
        )
        lines: dict[tuple[str, str, str], dict[str, Row]] = {}
        points: dict[str, Mapping[str, Any]] = {}
        for row in self.rows:
            if (
                row.repeat is None
                and row.metric in shown
                and row.label in ("measured", "simulated")
            ):
                key = (row.arm, key_of(row.point), row.subject)
                lines.setdefault(key, {})[row.metric] = row
                points[key_of(row.point)] = row.point
        paths = list(dict.fromkeys(path for point in points.values() for path in point))
        cells = [
            [arm, *(str(points[point].get(path, "")) for path in paths), subject]
            + [_cell(figures.get(metric)) for metric in shown]
            for (arm, point, subject), figures in lines.items()
        ]
        head = _line("th", ["arm", *paths, "of", *shown])
        body = "".join(_line("td", line) for line in cells)
        words = html.escape(f"{self.verdict}; report: {self.report}")
        return (
            f"<table><thead>{head}</thead><tbody>{body}</tbody></table><p>{words}</p>"
        )


def open(path: str | Path) -> Runs:
    """Return the results in a run folder.

    Raises ScenarioError if there is no result, or one of another version.
    """
    from ringlight.experiments.analysis.result import read_result

    result = read_result(Path(path))
    return Runs(tuple(from_json(result)), Path(path), result)


def _cell(row: Row | None) -> str:
    from ringlight.experiments.report.words import figure

    return figure(row)


def _line(cell: str, texts: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{cell}>{text}</{cell}>' for text in texts)}</tr>"
