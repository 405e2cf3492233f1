"""Bodies of the REST API's requests, checked strictly: an unknown key is an error."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fabric.crossconnect import Mode
from fabric.schedules import steps_named

PortNumber = Annotated[int, Field(ge=1)]
Channel = Annotated[int, Field(ge=0, le=4095)]
Label = Annotated[str, Field(max_length=64)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OneCrossConnect(Body):
    """``PUT …/cross-connects/{ingress}``. ``wavelength``: channel index, on a WSS."""

    egress: PortNumber
    wavelength: Channel | None = None
    name: Label | None = None
    mode: Mode = Mode.UPDATE
    dry_run: bool = False


class CrossConnectEntry(Body):
    ingress: PortNumber
    egress: PortNumber
    wavelength: Channel | None = None
    name: Label | None = None


class CrossConnectSet(Body):
    """``PUT …/cross-connects``."""

    mode: Mode = Mode.UPDATE
    cross_connects: list[CrossConnectEntry]
    dry_run: bool = False


class Circuits(Body):
    """``PUT /v1/circuits``: the duplex circuits that shall stand, as pairs (``["g0", "tor0:1"]``)."""

    circuits: list[tuple[str, str]]
    dry_run: bool = False


class LinkTest(Body):
    """Each rank sends for ``seconds`` to rank ``to`` (one for all, or a list by rank; null: receive only)."""

    seconds: float = Field(default=0.8, gt=0)
    to: int | list[int | None] | None = None


class Place(Body):
    """Where a job runs, and what it sends there. ``ranks``: GPUs in rank order, or ``gpus``: how many, of
    ``grid`` or ``ring`` if one is given."""

    ranks: list[str] | None = Field(default=None, min_length=1)
    gpus: int | None = Field(default=None, ge=1)
    grid: str | None = None
    ring: str | None = None
    collective: str = "ring"

    @model_validator(mode="after")
    def _is_there(self) -> Self:
        if (self.ranks is None) == (self.gpus is None):
            raise ValueError("give either ranks (GPU names in rank order) or gpus (how many)")
        # A name that there is not is told here, whatever the number of ranks.
        steps_named(self.collective, 1)
        return self

    @property
    def wanted(self) -> list[str] | int:
        """The GPUs in rank order, or how many."""
        return self.ranks if self.ranks is not None else self.gpus or 0


class JobRequest(Place):
    """``POST /v1/jobs``. Times in seconds, sizes in bytes, as emulated.

    ``hold``: stay READY until released.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,23}$")
    hold: bool = False
    port: int | None = Field(default=None, ge=1, le=65535)
    workload: Literal["train", "linktest"] = "train"
    gradient_bytes: int | None = Field(default=None, gt=0)
    compute_s: float | None = Field(default=None, ge=0)
    iterations: int | None = Field(default=None, ge=1)
    batch: int | None = Field(default=None, ge=1)
    seed: int | None = None
    learning_rate: float | None = Field(default=None, gt=0)
    connect_timeout_s: float | None = Field(default=None, gt=0)
    peer_timeout_s: float | None = Field(default=None, gt=0)
    go_timeout_s: float | None = Field(default=None, gt=0)
    beacon_interval_s: float | None = Field(default=None, ge=0)
    interface: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.-]{1,15}$")
    linktest: LinkTest | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.workload == "train":
            for name in ("gradient_bytes", "compute_s", "iterations"):
                if getattr(self, name) is None:
                    raise ValueError(f"workload train needs {name}")
        size = self.wanted if isinstance(self.wanted, int) else len(self.wanted)
        to = self.linktest.to if self.linktest is not None else None
        if isinstance(to, list) and len(to) != size:
            raise ValueError(f"linktest.to has {len(to)} entries for {size} ranks")
        for target in to if isinstance(to, list) else [to]:
            if target is not None and not 0 <= target < size:
                raise ValueError(f"linktest.to: there is no rank {target}")
        return self

    def worker_settings(self) -> dict[str, Any]:
        """What the workers are told; keys not given are left to the worker's own defaults."""
        return self.model_dump(exclude={"name", "ranks", "gpus", "grid", "ring", "hold"}, exclude_none=True)


class LightRequest(Place):
    """``POST /v1/arbiter/plan``: what a job with these keys of ``POST /v1/jobs`` would get."""


class Release(Body):
    """``POST /v1/jobs/release``: these READY jobs start together ``delay_s`` seconds from now."""

    jobs: list[str] = Field(min_length=1)
    delay_s: float = Field(default=0.3, ge=0, le=60)


class RegroupRequest(Body):
    """``POST /v1/regroup``: these jobs, or all that have not ended."""

    jobs: list[str] | None = None
    dry_run: bool = False
