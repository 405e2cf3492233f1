"""Requests to start workers, as the server agent takes them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ringlight.testbed.emulation.guests import GuestPlan

Name = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")
Digest = Field(pattern=r"^[0-9a-f]{64}$")


class WorkerRequest(BaseModel):
    """One worker to start. ``spec`` is handed to it as it is, with the job's directory for ``checkpoint``.

    ``attempt``: how often the job had been started anew before; it makes another worker of the same rank.
    ``graph``: SHA-256 of the workload that it executes, which was put before. ``guest``: what runs beside
    it once it is released, and whose end is its own.
    """

    model_config = ConfigDict(extra="forbid")
    job: str = Name
    rank: int = Field(ge=0, lt=1 << 16)
    gpu: str
    spec: dict[str, Any]
    attempt: int = Field(default=0, ge=0)
    checkpoint: bool = False
    graph: Annotated[str, Digest] | None = None
    guest: GuestPlan | None = None

    @property
    def worker(self) -> str:
        """The worker's id."""
        return f"{self.job}-{self.rank}" + (f"-r{self.attempt}" if self.attempt else "")

    @property
    def stays(self) -> bool:
        """Return whether the worker's process stays for later attempts, because nothing but the NIC ties it
        to its GPU."""
        return (
            self.checkpoint and "onic" not in self.spec and not self.spec.get("posted")
        )


class SpareRequest(BaseModel):
    """A spare's process to start for a job, where it waits to become one of the job's workers."""

    model_config = ConfigDict(extra="forbid")
    job: str = Name
    gpu: str

    @property
    def worker(self) -> str:
        """Its id until it has a rank."""
        return f"{self.job}-spare-{self.gpu}"
