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
    from ringlight.extensions.models.settings import Parallel, Training
    from ringlight.workloads.devices import Device
    from ringlight.workloads.formats.reading import Options

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
Computes = Annotated[str, AfterValidator(lambda value: _beside(value) if _is_table(value) else value)]


class SplitSpec(Strict):
    """Inequality of the division of tokens over experts: ``workloads.graph.Split``."""

    skew: Annotated[float, Field(ge=0, le=16)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 0
    same_order: bool = False


class AlgorithmSpec(Strict):
    """An algorithm of the user's: an MSCCL file below the scenario's directory."""

    file: FileName


def _algorithm_tag(value: object) -> str:
    return f"{KIND_TAG}{'file' if isinstance(value, Mapping | AlgorithmSpec) else 'name'}"


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
        tuple[FileName, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
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


def workload_of(spec: WorkloadSpec, ranks: int, directory: Path) -> Workload:
    """Return the work of a job of so many ranks in an iteration, in seconds and bytes of the real fabric.

    ``directory``: of the scenario file. Raises ValueError, ``key: reason`` if one key is at fault.
    """
    spec = _filling(spec, ranks)
    # Before thousands of ranks are made for nothing.
    spread = _spread(spec, ranks)
    made = _made(spec, ranks, directory) if spread == ranks else None
    if made is None or made.ranks != ranks:
        raise ValueError(f"it is for {spread if made is None else made.ranks} ranks, and the job has {ranks}")
    untimed = _untimed(made)
    if untimed is not None:
        raise ValueError(f"device: {untimed} states no time; name the device that computes")
    return made


def _filling(spec: WorkloadSpec, ranks: int) -> WorkloadSpec:
    """A placed model that states no ``dp`` has as many replicas as there are GPUs for."""
    if spec.placed is None or "dp" in spec.model_fields_set:
        return spec
    if ranks % spec.mp:
        raise ValueError(f"mp: {ranks} GPUs do not divide into replicas of {spec.mp}")
    return spec.model_copy(update={"dp": ranks // spec.mp})


def _spread(spec: WorkloadSpec, ranks: int) -> int:
    if spec.placed is not None:
        return spec.dp * spec.mp
    return _parallel(spec).ranks if spec.model is not None else ranks


def files_of(spec: WorkloadSpec, ranks: int, directory: Path) -> list[Path]:
    """Return all files that :func:`workload_of` reads. Raises ValueError, ``key: reason`` if one key is at
    fault.
    """
    tables = [directory / spec.device] if spec.device is not None and _is_table(spec.device) else []
    if isinstance(spec.collective, AlgorithmSpec):
        return [directory / spec.collective.file]
    if not spec.files:
        return tables
    from ringlight.workloads.formats.reading import files_read

    options = _options(spec, ranks, directory)
    paths = [directory / name for name in spec.files]
    return [*_keyed("files", lambda paths: files_read(paths, options), paths), *tables]


def emulated(workload: Workload, scale: Scale) -> Workload:
    """Return a workload as emulated: computation takes D times as long, and payload is 1/S."""
    from ringlight.workloads.devices import scaled

    emulated_workload: Workload = scaled(workload, scale.time, scale.payload)
    return emulated_workload


def problem_of(where: str, error: ValueError) -> str:
    """Return an error of a workload with its key, one of those of the section ``where``, in front."""
    key = str(error).partition(":")[0].partition(".")[0]
    return f"{where}{'.' if key in WorkloadSpec.model_fields else ': '}{error}"


def _untimed(workload: Workload) -> str | None:
    """Return the name of the first operation that takes time and states none."""
    for program in workload.programs:
        takes_time = np.isin(program.kind, (Kind.COMPUTE, Kind.MEMORY))
        missing = np.flatnonzero(takes_time & np.isnan(program.seconds))
        if len(missing):
            return workload.names[int(program.name[missing[0]])]
    return None


def _options(spec: WorkloadSpec, ranks: int, directory: Path) -> Options:
    from ringlight.workloads.formats.reading import Options

    groups = None if spec.groups is None else directory / spec.groups
    return Options(ranks, spec.model_ranks, spec.shape, groups)


def _made(spec: WorkloadSpec, ranks: int, directory: Path) -> Workload:
    if spec.collective is not None:
        return _collective(spec, ranks, directory)
    if spec.placed is not None:
        return _placed(spec)
    timing = _timing(spec, directory)
    if spec.model is None:
        from ringlight.workloads.formats.reading import read_any

        options = _options(spec, ranks, directory)
        paths = [directory / name for name in spec.files]
        return timing(_keyed("files", lambda paths: read_any(paths, options), paths))
    from ringlight.extensions.models.catalogue import model_named
    from ringlight.extensions.models.parallelism import generate

    return timing(generate(_keyed("model", model_named, spec.model), _parallel(spec), _training(spec)))


def _placed(spec: WorkloadSpec) -> Workload:
    from ringlight.extensions.models.catalogue import model_named
    from ringlight.extensions.models.placement import placed_workload, widest_window

    assert spec.placed is not None
    assert spec.batch is not None
    window = spec.window or spec.mp
    if spec.partners is not None:
        window = _keyed("partners", lambda most: widest_window(most, spec.dp, spec.mp), spec.partners)
    # The authors' profiles are of single precision, as is the default of operators.
    element_bytes = spec.element_bytes if "element_bytes" in spec.model_fields_set else 4
    device = _device(spec, element_bytes)
    return placed_workload(
        _keyed("placed", model_named, spec.placed), spec.dp, spec.mp, spec.batch,
        window, device, gradient_bytes=spec.gradient, all_reduce=spec.all_reduce,
        takes=spec.takes, element_bytes=element_bytes, sequence=spec.sequence, quantum_s=spec.quantum,
        algorithm=spec.algorithm or "ring",
    )  # fmt: skip


def _timing(spec: WorkloadSpec, directory: Path) -> Callable[[Workload], Workload]:
    """Return the function that gives a time to operations that state none: from a device's rate or a table.

    Without a device the function returns the workload unchanged.
    """
    from ringlight.workloads.devices import measured, timed

    if spec.device is None:
        return lambda workload: workload
    if _is_table(spec.device):
        path = directory / spec.device
        table = _keyed("device", _table, path)
        return lambda workload: _keyed(f"device: {path}", lambda made: measured(made, table), workload)
    device = _device(spec, spec.element_bytes)
    return lambda workload: timed(workload, device, spec.element_bytes)


def _device(spec: WorkloadSpec, element_bytes: int) -> Device:
    from ringlight.workloads.devices import device_named

    assert spec.device is not None
    device = _keyed("device", device_named, spec.device)
    if spec.efficiency is not None:
        device = replace(device, efficiency=spec.efficiency)
    _keyed("element_bytes", device.flops_per_s, element_bytes)
    return device


def _table(path: Path) -> dict[str, float]:
    """Return the seconds by operation. Raises ValueError naming the file and the line that is wrong."""
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


def _collective(spec: WorkloadSpec, ranks: int, directory: Path) -> Workload:
    from ringlight.fabric.kinds import KINDS

    assert spec.collective is not None
    assert spec.size is not None
    if isinstance(spec.collective, AlgorithmSpec):
        wrong, path = "collective.file", directory / spec.collective.file
        what = _keyed(wrong, algorithm_of_file, path)
        name = f"{what.kind} of {path.name}"
    else:
        what, name = Collective(spec.collective, spec.algorithm), spec.collective
        wrong = "algorithm" if spec.collective in KINDS else "collective"
    _keyed(wrong, what.steps, ranks)
    if what.kind == "all-to-all-v":
        what = what._replace(split=Split(**spec.split.model_dump()))
    elif "split" in spec.model_fields_set:
        raise ValueError(f"split: only an all-to-all-v is divided so; this is an {what.kind}")
    book = Book()
    group = book.group(range(ranks))
    writer = Writer(book)
    writer.collective(name, what, spec.size, 0)
    nobody = np.empty((ranks, 0))
    return book.workload(name, [writer.done()], [0] * ranks, [[group]] * ranks, nobody)


def algorithm_of_file(path: Path) -> Collective:
    """Return the algorithm of an MSCCL file. Raises ValueError, one line naming the file and its line."""
    from ringlight.extensions.msccl.reader import read_msccl

    algorithm = read_msccl(path)
    if algorithm.kind == "all-to-all-v":
        raise ValueError(f"{path}: the parts of an all-to-all-v differ, and an MSCCL file has equal chunks")
    return algorithm.collective()


def _parallel(spec: WorkloadSpec) -> Parallel:
    from ringlight.extensions.models.settings import Parallel

    return Parallel(spec.dp, spec.tp, spec.pp, spec.ep)


def _training(spec: WorkloadSpec) -> Training:
    from ringlight.extensions.models.settings import Training

    alike = (
        *("micro_batch", "micro_batches", "sequence", "schedule", "virtual_stages", "zero", "recompute"),
        *("sequence_parallel", "algorithms", "element_bytes", "gradient_bytes"),
    )
    values = {name: getattr(spec, name) for name in alike}
    for name in ("bucket", "first_bucket"):
        if (size := getattr(spec, name)) is not None:
            values[f"{name}_bytes"] = size
    return Training(**values, split=Split(**spec.split.model_dump()))
