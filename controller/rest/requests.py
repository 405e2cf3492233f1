"""Bodies of the REST API's requests, checked strictly: an unknown key is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from fastapi import Header, Path, Query
from pydantic import (
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    WithJsonSchema,
    create_model,
    model_validator,
)

from ringlight.controller.circuits.drift import Policy
from ringlight.controller.jobs.job import OWN_WORKLOADS
from ringlight.controller.rest.body import Body
from ringlight.fabric.algorithms import parse_collective, steps_named
from ringlight.fabric.guests import guest_kinds
from ringlight.workloads.following import followings
from ringlight.workloads.job_settings import LIMITS, SLOWER, Limit

PortNumber = Annotated[int, Field(ge=1, le=65535)]
Channel = Annotated[int, Field(ge=0, le=4095)]
Name = Annotated[str, Field(max_length=200)]
Label = Annotated[str, Field(max_length=64)]


def _bounds(limit: Limit) -> dict[str, Any]:
    """Return a limit as arguments of a pydantic field."""
    least = {"gt" if limit.above else "ge": limit.least}
    return {
        **least,
        "le": limit.most,
        **({} if limit.step is None else {"multiple_of": limit.step}),
    }


def _setting(name: str) -> Any:
    """Return the field of a job's setting, which has its limits and need not be given."""
    return Field(default=None, **_bounds(LIMITS[name]))


Factor = Annotated[float, Field(**_bounds(SLOWER))]


def _name(what: str, example: str) -> Any:
    return Path(description=f"Name of {what}", examples=[example])


PacketSwitchName = Annotated[str, _name("a packet switch", "tor0")]
OpticalSwitchName = Annotated[str, _name("an optical switch", "ocs0")]
FaultId = Annotated[
    int, Path(ge=1, le=(1 << 53) - 1, description="Id of a fault", examples=[1])
]
PlaneName = Annotated[str, _name("a plane that has light", "d")]
GpuName = Annotated[str, _name("a GPU that has an O-NIC", "d0")]
AnyGpuName = Annotated[str, _name("a GPU", "g0")]
WorkloadDigest = Annotated[
    str,
    Path(
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256 of a packed workload",
        examples=["0" * 64],
    ),
]
JobId = Annotated[str, _name("a job, as it was answered when it was submitted", "red")]
RankNumber = Annotated[
    int, Path(ge=0, lt=1 << 16, description="Rank of the job", examples=[0])
]
ClaimName = Annotated[str, _name("a claim", "slurm-42")]
RegroupId = Annotated[str, _name("a regrouping", "regroup-1")]
OpticalPortNumber = Annotated[
    int, Path(ge=1, le=65535, description="Port number", examples=[1])
]
Ingress = Annotated[int, Path(ge=1, le=65535, description="Port number", examples=[1])]
PathEnd = Annotated[str, Query(description="Name of a GPU", examples=["g0"])]
OtherPathEnd = Annotated[str, Query(description="Name of a GPU", examples=["g2"])]
#: Neither a query nor a header can say null.
_EVENT_ID = WithJsonSchema({"type": "integer", "minimum": 0, "maximum": 2**53})
EventId = Annotated[int | None, Query(ge=0, le=2**53), _EVENT_ID]
LastEventId = Annotated[int | None, Header(ge=0, le=2**53), _EVENT_ID]
#: A moment, CLOCK_MONOTONIC seconds.
Moment = Annotated[float, Query(ge=0, le=1e12, allow_inf_nan=False)]
StreamLength = Annotated[float | None, Query(ge=0, le=86_400)]
WithRates = Annotated[bool, Query(description="Rates, iterations and power, too")]
OfSwitch = Annotated[
    str | None, Query(description="Of this optical switch only", max_length=256)
]
OlderThan = Annotated[
    int | None, Query(ge=0, le=2**53, description="Only entries older than this one")
]
AtMost = Annotated[int, Query(ge=1, le=1000, description="Longest list")]
#: From which entry of a list on.
Cursor = Annotated[int, Query(ge=0, le=2**53)]


class PortAdmin(Body):
    """``PUT …/ports/{port}``."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"enabled": True}]})

    enabled: StrictBool


class OpticalFaultBody(Body):
    """``POST …/faults``: a kind and what belongs to it (docs/optical-management.md); the switch checks it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"kind": "deny", "count": 1},
                {"kind": "vanish", "probability": 0.05},
            ]
        }
    )

    kind: str = Field(max_length=40)
    protocol: str | None = Field(None, max_length=40)
    count: int | None = Field(None, ge=1, le=1_000_000)
    probability: float = Field(1.0, ge=0.0, le=1.0, allow_inf_nan=False)
    seed: int = Field(0, ge=0, le=(1 << 53) - 1)
    seconds: float | None = Field(None, ge=0.0, le=3600.0, allow_inf_nan=False)
    port: PortNumber | None = None
    ingress: PortNumber | None = None
    egress: PortNumber | None = None
    wavelength: Channel | None = None


class FaultBody(Body):
    """``POST /v1/faults`` (docs/faults.md). ``back_after_s``: from when it is in force; null: until it is
    restored. Not of ``restore``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"do": "cut", "target": "link tor0:4 tor1:4", "back_after_s": 0.2}
            ]
        }
    )

    do: Literal["cut", "kill", "lose", "restore"]
    target: str = Field(min_length=1, max_length=200)
    back_after_s: float | None = Field(None, ge=0.0, le=86_400.0, allow_inf_nan=False)


class GeneralPolicy(Body):
    """``PUT /v1/optical-policy``: of all optical switches that have none of their own."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"policy": "mend"}]})

    policy: Policy


class OwnPolicy(Body):
    """``PUT …/policy``: of one optical switch; null: as all others."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"policy": "mend"}, {"policy": None}]}
    )

    policy: Policy | None


class Settle(Body):
    """Body of ``POST …/settle``: apply this policy once."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"how": "repair"}]})

    how: Literal[Policy.MEND, Policy.REPAIR, Policy.ADOPT]


class LinkTest(Body):
    """Each rank sends for ``seconds`` to rank ``to`` (one for all, or a list by rank; null: receive only)."""

    seconds: float = Field(default=0.8, gt=0, le=600)
    to: int | Annotated[list[int | None], Field(max_length=4096)] | None = None


class Placement(Body):
    """Placement of a job, and its collective.

    ``ranks``: GPUs in rank order, or ``gpus``: how many. ``plane``: the plane with light that
    they are of; without it the controller finds one, or packet switches.
    """

    ranks: list[str] | None = Field(default=None, min_length=1, max_length=4096)
    gpus: int | None = Field(default=None, ge=1, le=4096, strict=True)
    plane: str | None = None
    collective: str = "ring"

    @model_validator(mode="after")
    def _is_there(self) -> Self:
        if (self.ranks is None) == (self.gpus is None):
            raise ValueError(
                "give either ranks (GPU names in rank order) or gpus (how many)"
            )
        if not parse_collective(self.collective).stepless:
            steps_named(self.collective, len(self.ranks or ()) or self.gpus or 0)
        return self

    @property
    def selection(self) -> list[str] | int:
        """The GPUs in rank order, or how many."""
        return self.ranks if self.ranks is not None else self.gpus or 0


_TRAINING: JsonValue = {
    "name": "red",
    "ranks": ["g0", "g2"],
    "gradient_bytes": 96400,
    "compute_s": 0.05,
    "iterations": 3,
    "seed": 7,
}


class CoreJobRequest(Placement):
    """Body of ``POST /v1/jobs``. Times in seconds, sizes in bytes, as emulated.

    ``hold``: stay READY until released. ``on_loss``: reaction to the death of a worker while the job runs:
    the job fails (fail), or continues from its newest checkpoint, with a spare GPU in the place of the lost
    one (swap) or with fewer ranks (shrink). ``spares``: GPUs kept for a swap; by default a free one is taken.
    ``checkpoint_every``: iterations from one checkpoint to the next. ``slower``: factor by which a rank's
    computing takes longer, by rank. ``graph``: SHA-256 of the workload that ``workload: graph`` executes once
    in each iteration, uploaded to ``/v1/workloads`` before. ``light``: what of it light
    follows. Any other workload is a program beside each worker, which the key of the same name describes;
    ``port`` is then the MASTER_PORT of these.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [_TRAINING]})

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,23}$")
    hold: StrictBool = False
    on_loss: Literal["fail", "swap", "shrink"] = "fail"
    spares: list[str] = Field(default=[], max_length=4096)
    checkpoint_every: int | None = _setting("checkpoint_every")
    port: int | None = _setting("port")
    workload: str = "train"
    graph: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    light: str | None = None
    gradient_bytes: int | None = _setting("gradient_bytes")
    compute_s: float | None = _setting("compute_s")
    slower: dict[Annotated[int, Field(ge=0)], Factor] | None = None
    iterations: int | None = _setting("iterations")
    batch: int | None = _setting("batch")
    seed: int | None = _setting("seed")
    learning_rate: float | None = _setting("learning_rate")
    connect_timeout_s: float | None = _setting("connect_timeout_s")
    peer_timeout_s: float | None = _setting("peer_timeout_s")
    go_timeout_s: float | None = _setting("go_timeout_s")
    beacon_interval_s: float | None = _setting("beacon_interval_s")
    interface: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.-]{1,15}$")
    linktest: LinkTest | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        needed = {
            "train": ("gradient_bytes", "compute_s", "iterations"),
            "graph": ("graph", "iterations"),
        }
        for name in needed.get(self.workload, ()):
            if getattr(self, name) is None:
                raise ValueError(f"workload {self.workload} needs {name}")
        for kind in guest_kinds():
            if (getattr(self, kind, None) is not None) != (self.workload == kind):
                raise ValueError(
                    f"workload {self.workload} and {kind} do not go together"
                )
        if self.graph is not None and self.workload != "graph":
            raise ValueError(f"workload {self.workload} has no use for graph")
        if self.light is not None and self.workload != "graph":
            raise ValueError(
                f"workload {self.workload} has no {self.light} that light could follow"
            )
        if self.workload != "train" and self.on_loss != "fail":
            raise ValueError(
                f"workload {self.workload} keeps no state to go on from, so on_loss must be fail"
            )
        if self.spares and self.on_loss != "swap":
            raise ValueError(f"on_loss {self.on_loss} has no use for spares")
        if self.checkpoint_every is not None and self.on_loss == "fail":
            raise ValueError("checkpoint_every: with on_loss fail nothing is kept")
        size = (
            self.selection if isinstance(self.selection, int) else len(self.selection)
        )
        to = self.linktest.to if self.linktest is not None else None
        if isinstance(to, list) and len(to) != size:
            raise ValueError(f"linktest.to has {len(to)} entries for {size} ranks")
        for rank in self.slower or ():
            if rank >= size:
                raise ValueError(f"slower: there is no rank {rank}")
        for target in to if isinstance(to, list) else [to]:
            if target is not None and not 0 <= target < size:
                raise ValueError(f"linktest.to: there is no rank {target}")
        return self

    def worker_settings(self) -> dict[str, Any]:
        """Return the workers' settings. Keys that are not given are left to the worker's own defaults."""
        ours = {"name", "ranks", "gpus", "plane", "hold", "on_loss", "spares"}
        return self.model_dump(exclude=ours, exclude_none=True)


def _with_extensions() -> type[CoreJobRequest]:
    """Return the request with the keys of all kinds of guests, and the words for what light may follow."""
    keys: dict[str, Any] = {
        "workload": (Literal[(*OWN_WORKLOADS, *guest_kinds())], "train")
    }
    keys |= {name: (kind.body() | None, None) for name, kind in guest_kinds().items()}
    if words := tuple(followings()):
        keys["light"] = (Literal[words] | None, None)
    return create_model(
        "JobRequest", __base__=CoreJobRequest, __doc__=CoreJobRequest.__doc__, **keys
    )


if TYPE_CHECKING:
    JobRequest = CoreJobRequest
else:
    JobRequest = _with_extensions()


class ClaimRequest(Body):
    """``POST /v1/claims``: these GPUs, in ring order, or ``count`` free ones belong together.

    ``wait_s``: longest wait for the light, seconds; then the answer may be ACTIVATING.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "slurm-42", "gpus": ["g1", "g3"], "wait_s": 20},
            ]
        }
    )

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")
    gpus: list[Name] | None = Field(default=None, min_length=1, max_length=4096)
    count: int | None = Field(default=None, ge=1, le=4096, strict=True)
    collective: Name = "ring"
    wait_s: float = Field(default=20.0, ge=0, le=20, allow_inf_nan=False)

    @model_validator(mode="after")
    def _is_there(self) -> Self:
        if (self.gpus is None) == (self.count is None):
            raise ValueError("give either gpus (names in ring order) or count")
        parse_collective(self.collective)
        return self

    @property
    def selection(self) -> list[str] | int:
        """The GPUs in ring order, or how many."""
        return self.gpus if self.gpus is not None else self.count or 0


class LightRequest(Placement):
    """``POST /v1/planes/plan``: what a job with these keys of ``POST /v1/jobs`` would get."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"ranks": ["d0", "d1"]}, {"gpus": 3, "plane": "r"}]
        }
    )


class Release(Body):
    """``POST /v1/jobs/release``: these READY jobs start together ``delay_s`` seconds from now."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"jobs": ["red"]}]})

    jobs: list[str] = Field(min_length=1, max_length=4096)
    delay_s: float = Field(default=0.3, ge=0, le=60)


class RegroupRequest(Body):
    """``POST /v1/regroup``: these jobs, or all that have not ended."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"dry_run": True}, {}]})

    jobs: list[str] | None = Field(default=None, max_length=4096)
    dry_run: StrictBool = False
