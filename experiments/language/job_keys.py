"""The keys of a job in a scenario file. Kinds of guests (``fabric.guests``) add keys of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from ringlight.experiments.language.plan import Guest, Scale
from ringlight.experiments.language.workloads import WorkloadSpec
from ringlight.fabric.values import Duration, Name, Strict

Words = Annotated[str, Field(min_length=1)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: ``ranks: all``: every GPU, in the fabric's order.
ALL = ("all",)


def listed(value: object) -> object:
    """Return a list of one for what may be written without it."""
    return [value] if isinstance(value, str | Mapping) else value


class StartSpec(Strict):
    """``at`` after the run began, or after the end of all jobs ``after``; ``event``: an event starts it."""

    at: Duration = 0.0
    after: Annotated[tuple[Name, ...], BeforeValidator(listed)] = ()
    event: bool = False


class JobKeys(Strict):
    """One job; see docs/experiments.md for its keys. ``training``: keys in place of the file's; or it
    executes a ``workload``, or guests do what it does."""

    title: Words | None = None
    ranks: (
        Annotated[
            tuple[Name, ...],
            BeforeValidator(lambda value: ALL if value == "all" else value),
        ]
        | None
    ) = None
    gpus: Annotated[int, Field(ge=2)] | None = None
    start: Annotated[
        StartSpec,
        BeforeValidator(lambda value: {"event": True} if value == "event" else value),
    ] = StartSpec()
    training: dict[str, Any] = Field(default_factory=dict)
    workload: WorkloadSpec | None = None
    spares: tuple[Name, ...] = ()
    recovery: Duration | None = None
    start_up: Duration = 0.0
    beacon: Duration = 0.0
    slower: dict[Annotated[int, Field(ge=0)], Factor] = Field(default_factory=dict)
    may_fail: bool = False

    @model_validator(mode="after")
    def _placed_one_way(self) -> JobKeys:
        if (self.ranks is None) == (self.gpus is None):
            raise ValueError(
                "give either ranks (its GPUs) or gpus (how many the controller places)"
            )
        if len(given := [key for key, value in self.does().items() if value]) > 1:
            raise ValueError(f"give either {' or '.join(given)}")
        return self

    def does(self) -> Mapping[str, object]:
        """Return the keys of which one says what the job does, with their values."""
        return {"training": self.training, "workload": self.workload}

    def guest(self, scale: Scale, directory: Path) -> Guest | None:
        """Return what runs beside each worker; None if the workers do the work.

        ``directory``: folder of the scenario file.
        """
        return None

    def files(self, directory: Path) -> Iterator[Path]:
        """Yield the files of the guests that belong to the experiment. Raises ValueError."""
        yield from ()
