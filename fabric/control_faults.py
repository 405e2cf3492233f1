"""Faults of the control network between the agents of O-NICs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

#: No time of a fault is longer, seconds.
LONGEST_S = 60


@dataclass(frozen=True)
class ControlFaults:
    """Faults of every message: ``delay_s`` is added to its time (emulated seconds).

    Shares (0..1) of the messages are lost (``loss``), sent twice (``duplicate``) and held back (``reorder``).
    ``tuning_s``: by GPU, what its laser takes to tune (as emulated) where it is not what the fabric says.
    Raises ValueError naming the field.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    delay_s: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    tuning_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_time("delay_s", self.delay_s)
        for gpu, seconds in self.tuning_s.items():
            check_time(f"tuning_s.{gpu}", seconds)
        for name in ("loss", "duplicate", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a share from 0 to 1")


def check_time(name: str, seconds: float) -> None:
    """Raise ValueError if a fault may not take so long. ``name``: what the message calls it."""
    if not 0 <= seconds <= LONGEST_S:
        raise ValueError(f"{name} must be from 0 to {LONGEST_S} seconds")
