"""A job's ``workload``: a graph of operations in place of the training loop.

It is generated from a model and how that is spread over ranks, read from files, or made of one collective.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from ringlight.experiments.language.plan import Scale
from ringlight.fabric.schema import KIND_TAG, Duration, Size, Strict
from ringlight.workloads.graph import Book, Collective, Kind, Split, Workload, Writer

if TYPE_CHECKING:
    from ringlight.workloads.devices import Device
    from ringlight.workloads.formats.reading import Options
    from ringlight.workloads.settings import Parallel, Training

T = TypeVar("T")
#: Most ranks along one kind of parallelism, and micro-batches: a mistyped number must not fill the memory.
MOST_RANKS, MOST_MICRO_BATCHES = 1 << 17, 10_000
Count = Annotated[int, Field(ge=1)]
Ranks = Annotated[int, Field(ge=1, le=MOST_RANKS)]
ElementBytes = Annotated[int, Field(ge=1, le=8)]
#: What a run folder has of its own; files of workloads lie there beside it, under the names they are read by.
OF_RUN_FOLDERS = (
    *("scenario.yaml", "environment.json", "events.jsonl", "throughput.csv", "result.json", "rows.csv"),
    *("plots", "trace.json", "report.html", "view.html", "logs"),
)


def _beside(name: str) -> str:
    """A file's name below the scenario's directory. Raises ValueError where a run folder cannot have it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or not name.isprintable():
        raise ValueError(f"{name!r:.60} is not below the directory of the scenario")
    if path.parts[0] in OF_RUN_FOLDERS:
        raise ValueError(f"{name!r:.60}: a run folder, which gets a copy, has a file of its own of this name")
    return str(path)


def _is_table(device: str | None) -> bool:
    """Return whether ``device`` is a file of measured times and not the name of a device."""
    return device is not None and device.endswith(".csv")


FileName = Annotated[str, AfterValidator(_beside)]
Takes = Literal["whole", "part"]
Computes = Annotated[str, AfterValidator(lambda found: _beside(found) if _is_table(found) else found)]


class SplitSpec(Strict):
    """Inequality of the division of tokens over experts: ``workloads.graph.Split``."""

    skew: Annotated[float, Field(ge=0, le=16)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 0
    same_order: bool = False


class AlgorithmSpec(Strict):
    """An algorithm of the user's: an MSCCL file below the scenario's directory."""

    file: FileName


def _algorithm_tag(found: object) -> str:
    return f"{KIND_TAG}{'file' if isinstance(found, Mapping | AlgorithmSpec) else 'name'}"


#: A kind by its name, or the file of an algorithm, which says its kind.
WhichCollective = Annotated[
    Annotated[str, Tag(f"{KIND_TAG}name")] | Annotated[AlgorithmSpec, Tag(f"{KIND_TAG}file")],
    Discriminator(_algorithm_tag),
]


class WorkloadSpec(Strict):
    """One of ``model``, ``placed``, ``files`` and ``collective``; the other keys belong to one of them.

    docs/experiments.md says what each means.
    """

    iterations: Count = 1
    light: Literal["once", "phases"] = "once"
    model: str | None = None
    dp: Ranks = 1
    tp: Ranks = 1
    pp: Ranks = 1
    ep: Ranks = 1
    micro_batch: Count = 1
    micro_batches: Annotated[int, Field(ge=1, le=MOST_MICRO_BATCHES)] = 1
    sequence: Annotated[int, Field(ge=0)] = 0
    schedule: str = "1f1b"
    virtual_stages: Count = 1
    bucket: Size | None = None
    first_bucket: Size | None = None
    element_bytes: ElementBytes = 2
    gradient_bytes: ElementBytes = 2
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    sequence_parallel: bool = False
    recompute: bool = False
    split: SplitSpec = SplitSpec()
    algorithms: dict[str, str] = Field(default_factory=dict)
    device: Computes | None = None
    efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    files: Annotated[
        tuple[FileName, ...], BeforeValidator(lambda found: [found] if isinstance(found, str) else found)
    ] = ()
    groups: FileName | None = None
    model_ranks: Count | None = None
    shape: tuple[Count, ...] = ()
    collective: WhichCollective | None = None
    algorithm: str = ""
    size: Size | None = None
    placed: str | None = None
    mp: Ranks = 1
    batch: Count | None = None
    window: Count | None = None
    partners: Count | None = None
    gradient: Size | None = None
    all_reduce: bool = True
    takes: Takes = "whole"
    quantum: Annotated[Duration, Field(gt=0)] = 1e-6

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadSpec:
        given = [name for name in ("model", "placed", "files", "collective") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError("give one of model, placed, files and collective")
        (source,) = given
        for key in sorted(self.model_fields_set - _KEYS[source]):
            raise ValueError(f"{key}: a workload of {source} has no such key")
        if isinstance(self.collective, AlgorithmSpec) and self.algorithm:
            raise ValueError(f"algorithm: it is that of {self.collective.file}; leave this key out")
        if source == "collective" and self.size is None:
            raise ValueError("size: a workload of one collective needs it")
        if source in ("model", "placed") and self.device is None:
            raise ValueError("device: a workload of a model needs it")
        if source == "placed" and self.batch is None:
            raise ValueError("batch: a placed model needs it, the samples of all replicas together")
        if self.window is not None and self.partners is not None:
            raise ValueError("partners: they and window both say how near pieces lie; give one of them")
        if source == "placed" and _is_table(self.device):
            raise ValueError(
                f"device: pieces are placed by their time, which {self.device} cannot tell before"
            )
        if self.efficiency is not None and self.device is None:
            raise ValueError("efficiency: it is of a device; name one")
        if self.efficiency is not None and _is_table(self.device):
            raise ValueError(f"efficiency: it is of a device, and {self.device} is a table of times")
        return self


_OF_ALL = ("iterations", "light")
_OF_FILES = {"files", "groups", "model_ranks", "shape"}
_OF_COLLECTIVES = {"collective", "algorithm", "size"}
_OF_PLACED = {
    "placed", "mp", "batch", "window", "partners", "gradient", "all_reduce", "takes", "quantum",
}  # fmt: skip
_KEYS = {
    "files": {*_OF_ALL, "device", "efficiency", *_OF_FILES},
    "collective": {*_OF_ALL, "split", *_OF_COLLECTIVES},
    "model": WorkloadSpec.model_fields.keys() - _OF_FILES - _OF_COLLECTIVES - _OF_PLACED,
    "placed": {
        *_OF_ALL, *("dp", "sequence", "element_bytes", "device", "efficiency", "algorithm"), *_OF_PLACED,
    },
}  # fmt: skip


def workload_of(found: WorkloadSpec, ranks: int, directory: Path) -> Workload:
    """Return the work of a job of so many ranks in an iteration, in seconds and bytes of the real fabric.

    ``directory``: of the scenario file. Raises ValueError, ``key: reason`` if one key is at fault.
    """
    found = _filling(found, ranks)
    # Before thousands of ranks are made for nothing.
    spread = _spread(found, ranks)
    made = _made(found, ranks, directory) if spread == ranks else None
    if made is None or made.ranks != ranks:
        raise ValueError(f"it is for {spread if made is None else made.ranks} ranks, and the job has {ranks}")
    untimed = _untimed(made)
    if untimed is not None:
        raise ValueError(f"device: {untimed} states no time; name the device that computes")
    return made


def _filling(found: WorkloadSpec, ranks: int) -> WorkloadSpec:
    """A placed model that states no ``dp`` has as many replicas as there are GPUs for."""
    if found.placed is None or "dp" in found.model_fields_set:
        return found
    if ranks % found.mp:
        raise ValueError(f"mp: {ranks} GPUs do not divide into replicas of {found.mp}")
    return found.model_copy(update={"dp": ranks // found.mp})


def _spread(found: WorkloadSpec, ranks: int) -> int:
    if found.placed is not None:
        return found.dp * found.mp
    return _parallel(found).ranks if found.model is not None else ranks


def files_of(found: WorkloadSpec, ranks: int, directory: Path) -> list[Path]:
    """Return all files that :func:`workload_of` reads. Raises ValueError, ``key: reason`` if one key is at
    fault.
    """
    tables = [directory / found.device] if found.device is not None and _is_table(found.device) else []
    if isinstance(found.collective, AlgorithmSpec):
        return [directory / found.collective.file]
    if not found.files:
        return tables
    from ringlight.workloads.formats.reading import files_read

    options = _options(found, ranks, directory)
    paths = [directory / name for name in found.files]
    return [*_keyed("files", lambda paths: files_read(paths, options), paths), *tables]


def emulated(workload: Workload, scale: Scale) -> Workload:
    """Return a workload as emulated: computation takes D times as long, and payload is 1/S."""
    from ringlight.workloads.devices import scaled

    found: Workload = scaled(workload, scale.time, scale.payload)
    return found


def problem_of(where: str, error: ValueError) -> str:
    """Return an error of a workload with its key, one of those of the section ``where``, in front."""
    key = str(error).partition(":")[0].partition(".")[0]
    return f"{where}{'.' if key in WorkloadSpec.model_fields else ': '}{error}"


def _untimed(workload: Workload) -> str | None:
    """The name of the first operation that takes time and states none."""
    for program in workload.programs:
        takes_time = np.isin(program.kind, (Kind.COMPUTE, Kind.MEMORY))
        missing = np.flatnonzero(takes_time & np.isnan(program.seconds))
        if len(missing):
            return workload.names[int(program.name[missing[0]])]
    return None


def _options(found: WorkloadSpec, ranks: int, directory: Path) -> Options:
    from ringlight.workloads.formats.reading import Options

    groups = None if found.groups is None else directory / found.groups
    return Options(ranks, found.model_ranks, found.shape, groups)


def _made(found: WorkloadSpec, ranks: int, directory: Path) -> Workload:
    if found.collective is not None:
        return _collective(found, ranks, directory)
    if found.placed is not None:
        return _placed(found)
    timing = _timing(found, directory)
    if found.model is None:
        from ringlight.workloads.formats.reading import read_any

        options = _options(found, ranks, directory)
        paths = [directory / name for name in found.files]
        return timing(_keyed("files", lambda paths: read_any(paths, options), paths))
    from ringlight.workloads.models import model_named
    from ringlight.workloads.parallelism import generate

    return timing(generate(_keyed("model", model_named, found.model), _parallel(found), _training(found)))


def _placed(found: WorkloadSpec) -> Workload:
    from ringlight.workloads.models import model_named
    from ringlight.workloads.placement import placed_workload, widest_window

    assert found.placed is not None
    assert found.batch is not None
    window = found.window or found.mp
    if found.partners is not None:
        window = _keyed("partners", lambda most: widest_window(most, found.dp, found.mp), found.partners)
    # The authors' profiles are of single precision, as is the default of operators.
    element_bytes = found.element_bytes if "element_bytes" in found.model_fields_set else 4
    device = _device(found, element_bytes)
    return placed_workload(
        _keyed("placed", model_named, found.placed), found.dp, found.mp, found.batch,
        window, device, gradient_bytes=found.gradient, all_reduce=found.all_reduce,
        takes=found.takes, element_bytes=element_bytes, sequence=found.sequence, quantum_s=found.quantum,
        algorithm=found.algorithm or "ring",
    )  # fmt: skip


def _timing(found: WorkloadSpec, directory: Path) -> Callable[[Workload], Workload]:
    """Return the function that gives a time to operations that state none: from a device's rate or a table.

    Without a device the function returns the workload unchanged.
    """
    from ringlight.workloads.devices import measured, timed

    if found.device is None:
        return lambda workload: workload
    if _is_table(found.device):
        path = directory / found.device
        table = _keyed("device", _table, path)
        return lambda workload: _keyed(f"device: {path}", lambda made: measured(made, table), workload)
    device = _device(found, found.element_bytes)
    return lambda workload: timed(workload, device, found.element_bytes)


def _device(found: WorkloadSpec, element_bytes: int) -> Device:
    from ringlight.workloads.devices import device_named

    assert found.device is not None
    device = _keyed("device", device_named, found.device)
    if found.efficiency is not None:
        device = replace(device, efficiency=found.efficiency)
    _keyed("element_bytes", device.flops_per_s, element_bytes)
    return device


def _table(path: Path) -> dict[str, float]:
    """Seconds by operation. Raises ValueError naming the file and the line that is wrong."""
    from ringlight.workloads.devices import seconds_table
    from ringlight.workloads.formats.files import read_text

    text = read_text(path)
    try:
        return seconds_table(text)
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None


def _keyed(key: str, make: Callable[[Any], T], value: Any) -> T:
    try:
        return make(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _collective(found: WorkloadSpec, ranks: int, directory: Path) -> Workload:
    from ringlight.fabric.kinds import KINDS

    assert found.collective is not None
    assert found.size is not None
    if isinstance(found.collective, AlgorithmSpec):
        wrong, path = "collective.file", directory / found.collective.file
        what = _keyed(wrong, algorithm_of_file, path)
        name = f"{what.kind} of {path.name}"
    else:
        what, name = Collective(found.collective, found.algorithm), found.collective
        wrong = "algorithm" if found.collective in KINDS else "collective"
    _keyed(wrong, what.steps, ranks)
    if what.kind == "all-to-all-v":
        what = what._replace(split=Split(**found.split.model_dump()))
    elif "split" in found.model_fields_set:
        raise ValueError(f"split: only an all-to-all-v is divided so; this is an {what.kind}")
    book = Book()
    group = book.group(range(ranks))
    writer = Writer(book)
    writer.collective(name, what, found.size, 0)
    nobody = np.empty((ranks, 0))
    return book.workload(name, [writer.done()], [0] * ranks, [[group]] * ranks, nobody)


def algorithm_of_file(path: Path) -> Collective:
    """Return the algorithm of an MSCCL file. Raises ValueError, one line naming the file and its line."""
    from ringlight.workloads.formats.msccl.reader import read_msccl

    found = read_msccl(path)
    if found.kind == "all-to-all-v":
        raise ValueError(f"{path}: the parts of an all-to-all-v differ, and an MSCCL file has equal chunks")
    return found.collective()


def _parallel(found: WorkloadSpec) -> Parallel:
    from ringlight.workloads.settings import Parallel

    return Parallel(found.dp, found.tp, found.pp, found.ep)


def _training(found: WorkloadSpec) -> Training:
    from ringlight.workloads.settings import Training

    alike = (
        *("micro_batch", "micro_batches", "sequence", "schedule", "virtual_stages", "zero", "recompute"),
        *("sequence_parallel", "algorithms", "element_bytes", "gradient_bytes"),
    )
    values = {name: getattr(found, name) for name in alike}
    for name in ("bucket", "first_bucket"):
        if (size := getattr(found, name)) is not None:
            values[f"{name}_bytes"] = size
    return Training(**values, split=Split(**found.split.model_dump()))
