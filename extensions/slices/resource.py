"""The resource of a slice, with the fields and reasons of GKE's Slice (accelerator.gke.io/v1beta1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from ringlight.controller.rest.body import Body
from ringlight.extensions.slices.fabric_key import NAME, NAME_LENGTH
from ringlight.extensions.slices.shapes import TOPOLOGY

API_VERSION: Literal["accelerator.gke.io/v1beta1"] = "accelerator.gke.io/v1beta1"
#: Annotation of a slice whose torus is twisted.
TWISTED = "ringlight/twisted"

Reason = Literal[
    "ACTIVATING",
    "ACTIVE",
    "ACTIVE_DEGRADED",
    "FAILED",
    "SliceCreationFailed",
    "DEACTIVATING",
]
Status = Literal["True", "False"]
Text = Annotated[str, Field(max_length=200)]
Annotations = dict[Annotated[str, Field(max_length=200)], Text]


def _check_twist(annotations: Annotations) -> Annotations:
    """Return the annotations. Raises ValueError for a twist that is neither."""
    value = annotations.get(TWISTED, "false")
    if value not in ("true", "false"):
        raise ValueError(f'{TWISTED} is "true" or "false", not "{value}"')
    return annotations


class MetadataBody(Body):
    """Name and annotations of a slice; ``ringlight/twisted: "true"`` requests a twisted torus."""

    name: Annotated[str, Field(pattern=NAME, max_length=NAME_LENGTH)]
    annotations: Annotated[
        Annotations,
        Field(max_length=32, default_factory=dict),
        AfterValidator(_check_twist),
    ]
    #: Typed clients of Kubernetes send it.
    creation_timestamp: Annotated[None, Field(alias="creationTimestamp")] = None


class SpecBody(Body):
    """Cubes of a slice. ``type``: the fabric's. Without ``partitionIds`` the first free cubes are taken."""

    type: Annotated[str, Field(max_length=64)]
    topology: Annotated[str, Field(pattern=TOPOLOGY)]
    partition_ids: Annotated[
        tuple[Annotated[str, Field(max_length=64)], ...] | None,
        Field(alias="partitionIds", max_length=144),
    ] = None


class StatusBody(Body):
    """Status without any key, as typed clients of Kubernetes send one."""


class SliceBody(Body):
    """``POST /v1/slices``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "metadata": {"name": "red"},
                    "spec": {
                        "type": "tpu7x",
                        "topology": "4x4x8",
                        "partitionIds": ["c0", "c1"],
                    },
                }
            ]
        }
    )

    api_version: Annotated[
        Literal["accelerator.gke.io/v1beta1"], Field(alias="apiVersion")
    ] = API_VERSION
    kind: Literal["Slice"] = "Slice"
    metadata: MetadataBody
    spec: SpecBody
    status: StatusBody | None = None


class SwapBody(Body):
    """``POST /v1/slices/NAME/swap``. ``spare``: by default the first free cube."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"partition": "c0", "spare": "c4"}]}
    )

    partition: Annotated[str, Field(max_length=64)]
    spare: Annotated[str, Field(max_length=64)] | None = None


@dataclass(frozen=True)
class Condition:
    """Condition of a slice. ``lastTransitionTime``: when its ``status`` changed last."""

    type: Literal["Ready"]
    status: Status
    reason: Reason
    message: str
    lastTransitionTime: str


@dataclass(frozen=True)
class Conditions:
    conditions: list[Condition]


@dataclass(frozen=True)
class Metadata:
    name: str
    annotations: dict[str, str]
    creationTimestamp: str


@dataclass(frozen=True)
class Spec:
    type: str
    topology: str
    partitionIds: list[str]


@dataclass(frozen=True)
class SliceDocument:
    apiVersion: str
    kind: Literal["Slice"]
    metadata: Metadata
    spec: Spec
    status: Conditions


@dataclass(frozen=True)
class SliceList:
    apiVersion: str
    kind: Literal["SliceList"]
    items: list[SliceDocument]


@dataclass(frozen=True)
class SliceGpus:
    """GPUs of a slice. ``gpus``: by cube. ``ring``: all of them, each a neighbour of the next in the torus."""

    gpus: dict[str, list[str]]
    ring: list[str]


@dataclass(frozen=True)
class SliceRecord:
    """A slice as it is stored. ``cubes``: in the order of their places in the ``topology``.

    ``before``: while a cube is swapped, the cubes before. ``failed_swap``: why the last swap failed, until the
    next swap. ``created`` and ``since``: times as texts, RFC 3339; ``since`` is when it became ready, or ceased
    to be.
    """

    name: str
    topology: str
    cubes: tuple[str, ...]
    created: str
    since: str
    reason: Reason = "ACTIVATING"
    message: str = ""
    before: tuple[str, ...] = ()
    failed_swap: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def twisted(self) -> bool:
        """Return whether a twisted torus is requested."""
        return self.annotations.get(TWISTED) == "true"

    @property
    def status(self) -> Status:
        """Return the status of the condition ``Ready``."""
        return "True" if self.reason in ("ACTIVE", "ACTIVE_DEGRADED") else "False"

    @property
    def holds(self) -> tuple[str, ...]:
        """Return the cubes that no other slice can have."""
        if self.reason in ("FAILED", "SliceCreationFailed"):
            return ()
        return tuple(dict.fromkeys((*self.cubes, *self.before)))

    def became(self, reason: Reason, message: str = "", **changes: Any) -> SliceRecord:
        """Return the slice in another state."""
        record = replace(self, reason=reason, message=message, **changes)
        return record if record.status == self.status else replace(record, since=now())

    def lit_with(self, trouble: str) -> SliceRecord:
        """Return the slice as lit, degraded if there is a ``trouble``."""
        message = "; ".join(filter(None, (trouble, self.failed_swap)))
        return self.became("ACTIVE_DEGRADED" if trouble else "ACTIVE", message)

    def document(self, model: str) -> SliceDocument:
        """Return the slice as a resource. ``model``: of its GPUs."""
        ready = Condition("Ready", self.status, self.reason, self.message, self.since)
        return SliceDocument(
            API_VERSION,
            "Slice",
            Metadata(self.name, dict(self.annotations), self.created),
            Spec(model, self.topology, list(self.cubes)),
            Conditions([ready]),
        )


def now() -> str:
    """Return the present time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
