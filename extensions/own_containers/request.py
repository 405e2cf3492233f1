"""The key ``container`` of ``POST /v1/jobs``."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool

from ringlight.controller.rest.body import Body
from ringlight.extensions.own_containers import keys


class ContainerMount(Body):
    """File or directory of the server, and its path in the container; read-only unless ``write``."""

    source: str = Field(pattern=r"^/", max_length=4096)
    target: Annotated[
        str, AfterValidator(keys.target), Field(pattern=r"^/", max_length=4096)
    ]
    write: StrictBool = False


class Container(Body):
    """Container that each rank runs instead of the built-in training: an image that the server has, and its
    ``command`` (default: the image's).

    The container may write to /job and /tmp; ``mounts`` and ``devices`` give it more by name. A command that
    has not ended ``deadline_s`` seconds after its start fails the job.
    """

    image: str = Field(min_length=1, max_length=256, pattern=r"^[a-zA-Z0-9][^\s]*$")
    command: list[str] | None = Field(default=None, min_length=1, max_length=1000)
    environment: dict[
        Annotated[
            str,
            AfterValidator(keys.variable),
            Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"),
        ],
        str,
    ] = Field(default={})
    mounts: list[ContainerMount] = Field(default=[], max_length=64)
    devices: list[
        Annotated[
            str,
            AfterValidator(keys.device),
            Field(pattern=r"^/dev/[^:]+$", max_length=4096),
        ]
    ] = Field(default=[], max_length=64)
    memory_bytes: int = Field(default=1 << 30, ge=16 << 20, le=1 << 50)
    deadline_s: float = Field(default=3600.0, gt=0, le=30 * 86400)
