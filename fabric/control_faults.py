"""Faults of the control network between the agents of O-NICs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ControlFaults:
    """Faults of every message: ``delay_s`` is added to its time (emulated seconds).

    Shares (0..1) of the messages are lost (``loss``), sent twice (``duplicate``) and held back (``reorder``).
    Raises ValueError naming the field.
    """

    delay_s: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0

    def __post_init__(self) -> None:
        if not self.delay_s >= 0:
            raise ValueError("delay_s must not be negative")
        for name in ("loss", "duplicate", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a share from 0 to 1")
