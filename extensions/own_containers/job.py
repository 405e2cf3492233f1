"""A job's ``image``: a container of somebody else's for each rank, in place of what our workers do."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ringlight.experiments.language.job_keys import JobKeys
from ringlight.experiments.language.plan import Guest, Machine, Scale
from ringlight.experiments.language.workload_keys import OF_RUN_FOLDERS
from ringlight.extensions.own_containers import keys
from ringlight.fabric.values import Duration, Size, Strict

_MEMORY_BYTES, _DEADLINE_S = 1 << 30, 3600.0
_LEAST_MEMORY_BYTES = 16 << 20
#: Files of a mounted directory that are copied into the run folder, at most.
_MOST_FILES = 1000


def _words(value: object) -> object:
    """A command as one text is split as a shell would; no shell runs it."""
    return shlex.split(value) if isinstance(value, str) else value


def _source(source: str) -> str:
    path = PurePosixPath(source)
    if not path.parts or ".." in path.parts or not source.isprintable():
        raise ValueError(
            f"{source!r:.60} is neither an absolute path nor below the directory of the scenario"
        )
    if not path.is_absolute() and path.parts[0] in OF_RUN_FOLDERS:
        raise ValueError(
            f"{source!r:.60}: a run folder, which gets a copy, has a file of its own of this name"
        )
    return str(path)


def _image(image: str) -> str:
    if len(image) > 256 or not re.fullmatch(r"[a-zA-Z0-9]\S*", image):
        raise ValueError(f"{image!r:.60} is no name of an image, such as my-training:1")
    return image


def _no_list(example: str) -> Callable[[object], object]:
    """Lists are what Docker's own files have there."""

    def check(value: object) -> object:
        if isinstance(value, list):
            raise ValueError(f"should be a mapping, such as {example}")
        return value

    return check


class MountSpec(Strict):
    """``path`` of this machine, absolute or below the directory of the scenario file."""

    path: Annotated[str, AfterValidator(_source)]
    write: bool = False


Mounted = Annotated[
    MountSpec,
    BeforeValidator(lambda value: {"path": value} if isinstance(value, str) else value),
]
Text = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) in (int, float) else value),
]
VariableName = Annotated[str, AfterValidator(keys.variable)]


@dataclass(frozen=True)
class Mount:
    """A path of this machine, its path in the container, and whether it may be written to."""

    source: str
    target: str
    write: bool


@dataclass(frozen=True)
class Container(Guest):
    """Container of a rank, by the keys of the controller's REST API.

    ``command``: in place of the image's; None leaves that. ``memory_bytes`` and ``deadline_s``, emulated
    seconds from the start, are its limits.
    """

    kind: ClassVar = "container"
    key: ClassVar = "image"
    noun: ClassVar = "container"

    image: str
    command: tuple[str, ...] | None
    environment: Mapping[str, str]
    mounts: tuple[Mount, ...]
    devices: tuple[str, ...]
    memory_bytes: int
    deadline_s: float

    def request(self) -> dict[str, Any]:
        return asdict(self)

    def lacks(self, machine: Machine) -> str | None:
        if machine.runtime != "docker":
            return f"image: it needs containers, and the runtime is {machine.runtime}"
        for mount in self.mounts:
            if not Path(mount.source).exists():
                return f"mounts.{mount.target}: there is no {mount.source}"
        for device in self.devices:
            if not Path(device).exists():
                return f"devices: there is no {device}"
        if (lacking := machine.lacks_image(self.image)) is not None:
            remedy = "build it, load it, or make one of Debian packages: ringlight image NAME PACKAGE…"
            return f"image: {lacking}; {remedy}"
        return None

    def description(self) -> dict[str, Any]:
        return {"image": self.image, "command": list(self.command or ())}


class ContainerJob(JobKeys):
    """A job that may run containers: all keys here but ``image`` only beside it."""

    image: Annotated[str, AfterValidator(_image)] | None = None
    command: (
        Annotated[tuple[Text, ...], BeforeValidator(_words), Field(min_length=1)] | None
    ) = None
    environment: Annotated[
        dict[VariableName, Text], BeforeValidator(_no_list("{STEPS: 3}"))
    ] = Field(default_factory=dict)
    mounts: Annotated[
        dict[Annotated[str, AfterValidator(keys.target)], Mounted],
        BeforeValidator(_no_list("{/app: code}")),
    ] = Field(default_factory=dict)
    devices: tuple[Annotated[str, AfterValidator(keys.device)], ...] = ()
    memory: Size | None = None
    deadline: Annotated[Duration, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _container_is_whole(self) -> ContainerJob:
        for key in (
            "command",
            "environment",
            "mounts",
            "devices",
            "memory",
            "deadline",
        ):
            if self.image is None and getattr(self, key):
                raise ValueError(f"{key}: only a job with an image has it")
        if self.memory is not None and self.memory < _LEAST_MEMORY_BYTES:
            raise ValueError(f"memory: {self.memory} bytes; a container needs 16 MiB")
        if self.image is not None and self.slower:
            raise ValueError("slower: how long a container computes is its own affair")
        return self

    def does(self) -> Mapping[str, object]:
        return {**super().does(), "image": self.image}

    def guest(self, scale: Scale, directory: Path) -> Guest | None:
        if self.image is None:
            return super().guest(scale, directory)
        return Container(
            image=self.image,
            command=self.command,
            environment=self.environment,
            mounts=tuple(
                Mount(str((directory / mount.path).resolve()), target, mount.write)
                for target, mount in self.mounts.items()
            ),
            devices=self.devices,
            memory_bytes=self.memory or _MEMORY_BYTES,
            deadline_s=(_DEADLINE_S if self.deadline is None else self.deadline)
            * scale.time,
        )

    def files(self, directory: Path) -> Iterator[Path]:
        """Yield the files of the mounts that belong to the experiment: those below the scenario file's
        directory.

        Raises ValueError for links, and for more than a run folder should get a copy of.
        """
        yield from super().files(directory)
        for mount in self.mounts.values():
            if not PurePosixPath(mount.path).is_absolute():
                path = directory
                for part in PurePosixPath(mount.path).parts:
                    path = path / part
                    _check_no_link(path)
                yield from _files_below(path)


def _check_no_link(path: Path) -> None:
    if path.is_symlink():
        raise ValueError(
            f"mounts: {path} is a link, and a run folder would get a copy of what it points to; name that by"
            " its absolute path"
        )


def _files_below(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    paths = []
    for place, directories, files in os.walk(path):
        directories[:] = sorted(name for name in directories if name != "__pycache__")
        for name in (*directories, *sorted(files)):
            _check_no_link(Path(place, name))
        paths += [
            candidate
            for candidate in (Path(place, name) for name in sorted(files))
            if candidate.is_file()
        ]
        if len(paths) > _MOST_FILES:
            raise ValueError(
                f"mounts: {path} has more than {_MOST_FILES} files, and a run folder gets a copy of what is "
                "below the directory of the scenario; name it by an absolute path"
            )
    return paths
