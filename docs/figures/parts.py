"""What blocks are made of: figures of a run, cells that show them, and tables, pictures and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import quantiles
from typing import Any, Literal

from ringlight.experiments.analysis.published import Mean, means
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.papers import paper
from ringlight.experiments.report.view import View
from ringlight.fabric.algorithms import steps_named

RunKind = Literal["measured", "simulated"]
#: The runs of a block's scenario, by how their figures are known.
Views = Mapping[RunKind, View]


@dataclass(frozen=True)
class Figure:
    """A row's value, where only the dotted paths of ``at`` have other values than in the file.

    ``published``: the paper's in place of the run's. ``real``: seconds as emulated become real ones.
    """

    run: RunKind
    arm: str
    metric: str
    subject: str
    at: Mapping[str, Any] = field(default_factory=dict)
    published: bool = False
    real: bool = False

    def value(self, view: View) -> Any:
        row = view.base.row_at(self.arm, self.metric, self.at, subject=self.subject, published=self.published)
        if row is None:
            where = f"{self.subject}, {dict(self.at)}" if self.at else self.subject
            raise ScenarioError(f"{view.name}: no {self.metric} of arm {self.arm} ({where})")
        return row.value / view.scale.time if self.real and isinstance(row.value, float) else row.value


measured, simulated = partial(Figure, "measured"), partial(Figure, "simulated")


@dataclass(frozen=True)
class StepCount:
    """Steps of a job's all-reduce, by its schedule."""

    run: RunKind
    arm: str
    subject: str

    def value(self, view: View) -> int:
        job = next(job for job in view.plans[self.arm].jobs if f"job {job.name}" == self.subject)
        return steps_named(job.loop.collective, job.gpus).steps


@dataclass(frozen=True)
class MeanRatio:
    """A ratio that is published as a mean over points, beside the run's own."""

    run: RunKind
    arm: str
    metric: str
    over: str

    def value(self, view: View) -> Mean:
        asked = (self.arm, self.metric, self.over)
        for found in means(view.experiment.spec, view.table):
            if (found.spec.arm, found.spec.metric, found.spec.over) == asked and found.ours:
                return found
        raise ScenarioError(f"{view.name}: no mean of {self.metric} of arm {self.arm} over {self.over}")


@dataclass(frozen=True)
class Middle:
    """The median of a run's own figure over its repeats and the two values between which nine of ten of them
    are; with ``over`` of its ratio to another arm's in the same repeat, of several arms to the least."""

    run: RunKind
    arm: str
    metric: str
    at: Mapping[str, Any] = field(default_factory=dict)
    over: tuple[str, ...] = ()
    subject: str = "run"

    def value(self, view: View) -> tuple[float, float, float]:
        mine = self._by_repeat(view, self.arm)
        if self.over:
            others = [self._by_repeat(view, arm) for arm in self.over]
            mine = {n: value / min(other[n] for other in others) for n, value in mine.items()}
        low, median, high = quantiles(list(mine.values()), n=20, method="inclusive")[0:19:9]
        return median, low, high

    def _by_repeat(self, view: View, arm: str) -> dict[int, float]:
        row = view.base.row_at(arm, self.metric, self.at, subject=self.subject)
        found = () if row is None else view.table.rows_of(arm, row.point, self.subject, self.metric)
        values = {one.repeat: one.value for one in found if one.repeat is not None and is_number(one.value)}
        if len(values) < 2:
            raise ScenarioError(f"{view.name}: no repeats of {self.metric} of arm {arm} ({dict(self.at)})")
        return values


Source = Figure | StepCount | MeanRatio | Middle


@dataclass(frozen=True)
class Of:
    """A cell that ``show`` makes from figures."""

    show: Callable[..., str]
    figures: tuple[Source, ...]


Cell = str | Of


def of(show: Callable[..., str], *figures: Source) -> Of:
    return Of(show, figures)


@dataclass(frozen=True)
class Table:
    """``columns``: their headings, with " | " between them. A line may be shorter."""

    scenario: str
    columns: str
    lines: Sequence[Sequence[Cell]]

    @property
    def figures(self) -> Iterator[Source]:
        return (each for line in self.lines for cell in line if isinstance(cell, Of) for each in cell.figures)

    @property
    def kinds(self) -> tuple[RunKind, ...]:
        return tuple(dict.fromkeys(figure.run for figure in self.figures))

    def body(self, views: Views) -> str:
        columns = self.columns.split(" | ")
        lines = [columns]
        for line in self.lines:
            lines.append([_shown(cell, views) for cell in line] + [""] * (len(columns) - len(line)))
        head, *body = ("|" + "".join(f" {cell} |" if cell else " |" for cell in line) for line in lines)
        return "\n".join([head, f"|{'---|' * len(columns)}", *body])


def _shown(cell: Cell, views: Views) -> str:
    return (
        cell if isinstance(cell, str) else cell.show(*(each.value(views[each.run]) for each in cell.figures))
    )


@dataclass(frozen=True)
class _OfOneRun:
    scenario: str
    kind: RunKind

    @property
    def kinds(self) -> tuple[RunKind, ...]:
        return (self.kind,)


@dataclass(frozen=True)
class Picture(_OfOneRun):
    """``plot``: which of the report's pictures ``docs/images/FILE`` is."""

    plot: str
    file: str
    caption: str

    def body(self, views: Views) -> str:
        return f"![{self.caption}]({{images}}/{self.file})"


@dataclass(frozen=True)
class Verdict(_OfOneRun):
    """What the scenario's paper module says of the figures, as a list."""

    def body(self, views: Views) -> str:
        view = views[self.kind]
        spec = view.experiment.spec.paper
        assert spec is not None
        return "\n".join(f"- {finding.text}" for finding in paper(spec.model or "").verdict(view.base))


Block = Table | Picture | Verdict
