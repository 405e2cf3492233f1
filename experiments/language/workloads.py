"""A job's ``workload``: a graph of operations in place of the training loop.

One of its keys says where it comes from: ``files``, one ``collective``, or a key of an extension.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import (
    BeforeValidator,
    Discriminator,
    Tag,
    create_model,
    model_validator,
)

from ringlight.experiments.language.plan import Scale
from ringlight.experiments.language.workload_keys import (
    ComputingKeys,
    Count,
    FileName,
    SplitSpec,
    WorkloadKeys,
    keyed,
)
from ringlight.fabric.extension import loaders
from ringlight.fabric.values import KIND_TAG, Size, Strict
from ringlight.workloads.devices import scaled
from ringlight.workloads.formats.contract import Options, Setting
from ringlight.workloads.formats.reading import (
    files_read,
    read_algorithm,
    read_any,
    settings,
)
from ringlight.workloads.graph import Collective, Kind, Split, Workload
from ringlight.workloads.graph_writer import Book, Writer


class FilesKeys(ComputingKeys):
    """A workload of files; each setting that such files may leave open is a key besides."""

    files: Annotated[
        tuple[FileName, ...],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ]

    def made(self, ranks: int, directory: Path) -> Workload:
        """Return the workload in the files."""
        options = self._options(ranks, directory)
        paths = [directory / name for name in self.files]
        return self.timed(
            keyed("files", lambda paths: read_any(paths, options), paths), directory
        )

    def files_read(self, ranks: int, directory: Path) -> list[Path]:
        """Return the files, those that belong to them, and that of times."""
        options = self._options(ranks, directory)
        paths = [directory / name for name in self.files]
        read = keyed("files", lambda paths: files_read(paths, options), paths)
        return [*read, *super().files_read(ranks, directory)]

    def _options(self, ranks: int, directory: Path) -> Options:
        given = {setting.name: getattr(self, setting.name) for setting in settings()}
        names = {setting.name for setting in settings() if setting.kind == "file"}
        paths = {
            name: directory / given[name] for name in names if given[name] is not None
        }
        return Options(ranks, given | paths)


#: The type of a setting's value, and its value if a file leaves nothing open, by the setting's kind.
_VALUES: Mapping[str, tuple[Any, Any]] = {
    "count": (Count | None, None),
    "file": (FileName | None, None),
    "sizes": (tuple[Count, ...], ()),
}


def _files_source(known: tuple[Setting, ...]) -> type[WorkloadKeys]:
    keys: dict[str, Any] = {setting.name: _VALUES[setting.kind] for setting in known}
    return create_model("FilesSpec", __base__=FilesKeys, **keys)


class AlgorithmSpec(Strict):
    """An algorithm of the user's: a file below the scenario's directory."""

    file: FileName


def _algorithm_tag(value: object) -> str:
    return (
        f"{KIND_TAG}{'file' if isinstance(value, Mapping | AlgorithmSpec) else 'name'}"
    )


#: A kind by its name, or the file of an algorithm, which says its kind.
WhichCollective = Annotated[
    Annotated[str, Tag(f"{KIND_TAG}name")]
    | Annotated[AlgorithmSpec, Tag(f"{KIND_TAG}file")],
    Discriminator(_algorithm_tag),
]


class CollectiveKeys(WorkloadKeys):
    """A workload of one collective of all ranks."""

    collective: WhichCollective
    algorithm: str = ""
    size: Size | None = None
    split: SplitSpec = SplitSpec()

    @model_validator(mode="after")
    def _whole(self) -> CollectiveKeys:
        if isinstance(self.collective, AlgorithmSpec) and self.algorithm:
            raise ValueError(
                f"algorithm: it is that of {self.collective.file}; leave this key out"
            )
        if Path(self.algorithm).suffix:
            file = self.algorithm
            raise ValueError(
                f"algorithm: {file} is a file; write collective: {{file: {file}}}"
            )
        if self.size is None:
            raise ValueError("size: a workload of one collective needs it")
        return self

    def made(self, ranks: int, directory: Path) -> Workload:
        """Return a call of the collective."""
        from ringlight.fabric.kinds import KINDS

        assert self.size is not None
        if isinstance(self.collective, AlgorithmSpec):
            wrong, path = "collective.file", directory / self.collective.file
            what = keyed(wrong, read_algorithm, path)
            name = f"{what.kind} of {path.name}"
        else:
            what, name = Collective(self.collective, self.algorithm), self.collective
            wrong = "algorithm" if self.collective in KINDS else "collective"
        keyed(wrong, what.steps, ranks)
        if what.kind == "all-to-all-v":
            what = what._replace(split=Split(**self.split.model_dump()))
        elif "split" in self.model_fields_set:
            raise ValueError(
                f"split: only an all-to-all-v is divided so; this is an {what.kind}"
            )
        book = Book()
        group = book.group(range(ranks))
        writer = Writer(book)
        writer.collective(name, what, self.size, 0)
        nobody = np.empty((ranks, 0))
        return book.workload(
            name, [writer.done()], [0] * ranks, [[group]] * ranks, nobody
        )

    def files_read(self, ranks: int, directory: Path) -> list[Path]:
        """Return the file of the algorithm, if it has one."""
        return (
            [directory / self.collective.file]
            if isinstance(self.collective, AlgorithmSpec)
            else []
        )


@cache
def sources() -> Mapping[str, type[WorkloadKeys]]:
    """Return the keys that say where a workload comes from, each with the class of all keys beside it."""
    added = {key: load() for key, load in loaders("workloads").items()}
    return {"collective": CollectiveKeys, "files": _files_source(settings()), **added}


@cache
def workload_keys() -> frozenset[str]:
    """Return the keys of all workloads."""
    return frozenset(
        key for source in sources().values() for key in source.model_fields
    )


def _source_of(value: object) -> str | None:
    """Return the key that says where a workload comes from; None unless there is one such key."""
    if isinstance(value, WorkloadKeys):
        return next(key for key, source in sources().items() if type(value) is source)
    given = [key for key in sources() if isinstance(value, Mapping) and value.get(key)]
    return given[0] if len(given) == 1 else None


def _of_one_source(value: object) -> object:
    """Check that a section has one source, and keys of no other. Raises ValueError."""
    if not isinstance(value, Mapping):
        return value
    source, known = _source_of(value), workload_keys()
    if source is None and known.issuperset(value):
        *some, last = sources()
        raise ValueError(f"give one of {', '.join(some)} and {last}")
    if source is not None:
        foreign = known - sources()[source].model_fields.keys()
        if wrong := sorted(foreign.intersection(value)):
            raise ValueError(f"{wrong[0]}: a workload of {source} has no such key")
    return value


def _tag(value: object) -> str:
    # Of a section without a source it is told which of its keys nobody knows.
    return f"{KIND_TAG}{_source_of(value) or 'collective'}"


if TYPE_CHECKING:
    WorkloadSpec = WorkloadKeys
else:
    _TAGGED = [
        Annotated[source, Tag(f"{KIND_TAG}{key}")] for key, source in sources().items()
    ]
    WorkloadSpec = Annotated[
        reduce(or_, _TAGGED), Discriminator(_tag), BeforeValidator(_of_one_source)
    ]


def workload_of(spec: WorkloadKeys, ranks: int, directory: Path) -> Workload:
    """Return the work of a job of so many ranks in an iteration, in seconds and bytes of the real fabric.

    ``directory``: of the scenario file. Raises ValueError, ``key: reason`` if one key is at fault.
    """
    stated = spec.ranks_for(ranks)
    made = spec.made(ranks, directory) if stated == ranks else None
    if made is None or made.ranks != ranks:
        its = stated if made is None else made.ranks
        product = (
            f"; its ranks are {' · '.join(spec.parallel)}" if spec.parallel else ""
        )
        raise ValueError(f"it is for {its} ranks, and the job has {ranks}{product}")
    untimed = _untimed(made)
    if untimed is not None:
        raise ValueError(
            f"device: {untimed} states no time; name the device that computes"
        )
    return made


def emulated(workload: Workload, scale: Scale) -> Workload:
    """Return a workload as emulated: computation takes D times as long, and payload is 1/S."""
    return scaled(workload, scale.time, scale.payload)


def problem_of(where: str, error: ValueError) -> str:
    """Return an error of a workload with its key, one of those of the section ``where``, in front."""
    key = str(error).partition(":")[0].partition(".")[0]
    return f"{where}{'.' if key in workload_keys() else ': '}{error}"


def _untimed(workload: Workload) -> str | None:
    """Return the name of the first operation that takes time and states none."""
    for program in workload.programs:
        takes_time = np.isin(program.kind, (Kind.COMPUTE, Kind.MEMORY))
        missing = np.flatnonzero(takes_time & np.isnan(program.seconds))
        if len(missing):
            return workload.names[int(program.name[missing[0]])]
    return None
