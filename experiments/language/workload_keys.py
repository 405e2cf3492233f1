"""The contract of what a job's ``workload`` is made from: its keys, and the workload that they make.

The core's sources and those of extensions (``workloads`` of ``fabric.extension.Extension``) alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, Field, model_validator

from ringlight.fabric.extension import entries
from ringlight.fabric.values import Strict
from ringlight.workloads.devices import (
    Device,
    device_named,
    measured,
    seconds_table,
    timed,
)
from ringlight.workloads.following import followings
from ringlight.workloads.formats.files import read_text
from ringlight.workloads.graph import Workload

T = TypeVar("T")
#: What light is set for: the workload as a whole, once, or what it follows.
if TYPE_CHECKING:
    Light = str
else:
    Light = Literal[("once", *followings())]
Count = Annotated[int, Field(ge=1)]
#: What a run folder has of its own; files of workloads lie there beside it, under the names they are read by.
OF_RUN_FOLDERS = (
    *(
        "scenario.yaml",
        "environment.json",
        "events.jsonl",
        "throughput.csv",
        "result.json",
        "rows.csv",
    ),
    *("plots", "trace.json", "report.html", "logs"),
    *entries("pages"),
)


def _beside(name: str) -> str:
    """A file's name below the scenario's directory. Raises ValueError where a run folder cannot have it."""
    path = PurePosixPath(name)
    if (
        path.is_absolute()
        or ".." in path.parts
        or not path.parts
        or not name.isprintable()
    ):
        raise ValueError(f"{name!r:.60} is not below the directory of the scenario")
    if path.parts[0] in OF_RUN_FOLDERS:
        raise ValueError(
            f"{name!r:.60}: a run folder, which gets a copy, has a file of its own of this name"
        )
    return str(path)


FileName = Annotated[str, AfterValidator(_beside)]


class WorkloadKeys(Strict):
    """Keys that every workload has, and what a source of workloads tells of itself.

    A source is a class with more keys. What its methods raise is ValueError, ``key: reason`` if one key is at
    fault. Directories are those of scenario files.
    """

    iterations: Count = 1
    light: Light = "once"

    #: Keys whose product is the number of ranks.
    parallel: ClassVar[tuple[str, ...]] = ()

    def ranks_for(self, ranks: int) -> int:
        """Return for how many ranks it is, in a job of so many: asked before thousands are made for
        nothing."""
        return ranks

    def made(self, ranks: int, directory: Path) -> Workload:
        """Return the workload of an iteration, in seconds and bytes of the real fabric."""
        raise NotImplementedError

    def files_read(self, ranks: int, directory: Path) -> list[Path]:
        """Return all files that :meth:`made` reads."""
        return []


def _is_table(device: str | None) -> bool:
    """Return whether ``device`` is a file of measured times and not the name of a device."""
    return device is not None and device.endswith(".csv")


class ComputingKeys(WorkloadKeys):
    """Keys of workloads whose operations may state FLOPs and bytes: the device that takes them their time."""

    device: Annotated[
        str, AfterValidator(lambda value: _beside(value) if _is_table(value) else value)
    ] | (None) = None
    efficiency: Annotated[float, Field(gt=0, le=1)] | None = None

    @model_validator(mode="after")
    def _efficiency_of_a_device(self) -> ComputingKeys:
        if self.efficiency is not None and self.device is None:
            raise ValueError("efficiency: it is of a device; name one")
        if self.efficiency is not None and self.has_table:
            raise ValueError(
                f"efficiency: it is of a device, and {self.device} is a table of times"
            )
        return self

    @property
    def has_table(self) -> bool:
        """Return whether times are those of a file."""
        return _is_table(self.device)

    def files_read(self, ranks: int, directory: Path) -> list[Path]:
        """Return the file of times, if there is one."""
        return (
            [directory / self.device]
            if self.device is not None and self.has_table
            else []
        )

    def timed(
        self, workload: Workload, directory: Path, element_bytes: int = 2
    ) -> Workload:
        """Return the workload with times for operations that state none, if there is a device."""
        if self.device is None:
            return workload
        if not self.has_table:
            return timed(workload, self.real_device(element_bytes), element_bytes)
        path = directory / self.device
        table = keyed("device", _table, path)
        return keyed(f"device: {path}", lambda made: measured(made, table), workload)

    def real_device(self, element_bytes: int) -> Device:
        """Return the device, as efficient as is said, that computes with elements of so many bytes."""
        assert self.device is not None
        device = keyed("device", device_named, self.device)
        if self.efficiency is not None:
            device = replace(device, efficiency=self.efficiency)
        keyed("element_bytes", device.flops_per_s, element_bytes)
        return device


def _table(path: Path) -> dict[str, float]:
    """Return the seconds by operation. Raises ValueError naming the file and the line that is wrong."""
    text = read_text(path)
    try:
        return seconds_table(text)
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None


class SplitSpec(Strict):
    """Inequality of the division of an all-to-all-v: ``workloads.graph.Split``."""

    skew: Annotated[float, Field(ge=0, le=16)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 0
    same_order: bool = False


def keyed(key: str, make: Callable[[Any], T], value: Any) -> T:
    """Return what is made of a value. Raises ValueError with the key in front."""
    try:
        return make(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
