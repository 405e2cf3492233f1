"""The contract of guests: programs that run beside workers, which hold the NICs for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class GuestEnd:
    """End of a guest. ``t``: CLOCK_MONOTONIC seconds. ``exit_code``: None if a signal ended the guest."""

    t: float
    exit_code: int | None
    signal: int | None
    oom: bool
    error: str | None


class Guest(Protocol):
    """One guest, made but not started; ``pidfd`` becomes readable when it dies.

    Methods raise docker.errors.DockerException and requests.RequestException.
    """

    pidfd: int | None
    pid: int | None

    @property
    def made(self) -> bool:
        """Return whether there is something to read output of."""

    def start(self) -> float | None:
        """Start the guest. Return the time of its start, CLOCK_MONOTONIC seconds, or None if the guest was
        killed before and will never start."""

    def end(self) -> GuestEnd:
        """Return how the guest ended. Call it after the guest has ended."""

    def output(self) -> dict[str, bytes]:
        """Return what the guest wrote to ``stdout`` and ``stderr``."""

    def overdrawn(self) -> str | None:
        """Return a line if the guest holds more space than allowed, else None. Raises OSError."""

    def kill(self) -> None:
        """End it; no harm when it is gone."""

    def remove(self) -> None:
        """End it and remove what it left."""


@dataclass(frozen=True)
class GuestPlan:
    """Request for a guest: its kind (``fabric.guests``), and the settings that kind takes."""

    kind: str
    settings: Mapping[str, Any]
