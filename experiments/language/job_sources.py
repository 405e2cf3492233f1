"""Sources of jobs: what may stand under a key of ``jobs`` in place of jobs by name (``Extension.jobs``)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from ringlight.experiments.language.plan import (
    EventPlan,
    JobPlan,
    RunPlan,
    Setting,
    SourcePlan,
)
from ringlight.fabric.extension import entries
from ringlight.fabric.values import Strict

T = TypeVar("T")
Lab = TypeVar("Lab")


class Files(Protocol):
    """Contents of files that a scenario file names, read once for all of its runs."""

    def read(self, name: str, how: Callable[[Path], T], key: Hashable = None) -> T:
        """Return what ``how`` returns of a file below the scenario's directory. ``key``: what else decides
        that."""
        ...

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made before under this key; else make it."""
        ...


class Sourced(NamedTuple):
    """``jobs``: what a lab has of them, () if they are only computed together (``JobSource.batch``).
    ``events``: besides those of the file."""

    plan: SourcePlan
    jobs: tuple[JobPlan, ...] = ()
    events: tuple[EventPlan, ...] = ()


class JobSource(Protocol):
    """``spec``: the section's model."""

    spec: type[Strict]

    def meant(self, written: Mapping[str, Any]) -> bool:
        """Return whether a section as written is the source's: a job may be named as its key is."""
        ...

    def plan(
        self, spec: Any, setting: Setting, events: Sequence[EventPlan], files: Files
    ) -> Sourced:
        """Return the plan of a run's jobs. ``spec``: the section, checked; ``events``: of the file.

        Raises ValueError, ``key: what is wrong``.
        """
        ...

    def document(self, plan: RunPlan) -> dict[str, Any]:
        """Return what ``check`` says of a run's jobs."""
        ...

    def line(self, document: Mapping[str, Any]) -> str:
        """Return such a document as a line for a person."""
        ...

    def refused(self, plan: RunPlan, *, simulated: bool) -> str | None:
        """Return why a run cannot be simulated, or emulated, ``key: reason``; None if it can."""
        ...

    def batch(self, plan: RunPlan) -> Any:
        """Return a run as data that another process can compute: ``backends.protocol.Batch``. Called if
        ``SourcePlan.computed``."""
        ...

    def lab(self, plan: RunPlan, lab: Any) -> Any:
        """Return the source's own lab in front of a given one, each a ``backends.protocol.BuiltLab``. Called
        unless ``SourcePlan.computed``."""
        ...


def job_source(key: str) -> JobSource:
    """Return the source of jobs with a key."""
    item, value = entries("jobs")[key]
    source: JobSource = item.load(value)
    return source


def source_of(jobs: Any) -> str | None:
    """Return the key of the source that makes a file's jobs, as written; None if they stand there by name."""
    for key in entries("jobs") if isinstance(jobs, Mapping) else ():
        if isinstance(written := jobs.get(key), Mapping) and job_source(key).meant(
            written
        ):
            return key
    return None


def lab_of(plan: RunPlan, lab: Lab) -> Lab:
    """Return the lab as the jobs of a run use it: as it is, or with what their source has in front of it."""
    source = made_by(plan)
    return lab if source is None or plan.computed else source.lab(plan, lab)


def made_by(plan: RunPlan) -> JobSource | None:
    """Return the source that made a run's jobs; None where the file names them."""
    return None if plan.source is None else job_source(plan.source.key)
