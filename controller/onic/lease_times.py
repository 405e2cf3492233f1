"""Durations of the O-NICs' protocol: leases, guards and retransmissions."""

from __future__ import annotations

from dataclasses import dataclass

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Times:
    """All durations, seconds. Raises ValueError when they do not fit each other.

    ``lease_s``: how long a grant lasts unless renewed; the same at all O-NICs of a fabric. ``guard_s``: how
    much longer the receiver waits than the source may shine: drift between two clocks in one lease, and the
    light's way through the fibre. ``retry_s``: first retransmission, each later one after twice the time up
    to ``refresh_s``, which is also how often a queued request is renewed. ``patience_s``: a receiver that has
    not answered for so long makes the flow fail.
    """

    lease_s: float = 2.0
    guard_s: float = 0.1
    retry_s: float = 0.02
    refresh_s: float = 0.5
    patience_s: float = 5.0

    def __post_init__(self) -> None:
        if (
            not 0 < self.retry_s <= self.refresh_s <= self.lease_s / 2 < NEVER
            or not 0 <= self.guard_s < NEVER
        ):
            raise ValueError(
                f"0 < retry_s <= refresh_s <= lease_s / 2 and guard_s >= 0 must hold: {self}"
            )
        if not self.retry_s <= self.patience_s < NEVER:
            raise ValueError(f"patience_s must be at least retry_s: {self}")

    @property
    def confirm_s(self) -> float:
        """Seconds for which light is on before its source confirms it; the receiver
        repeats its GRANT later.
        """
        return self.retry_s / 4

    @classmethod
    def dilated(cls, lease_s: float, dilation: float) -> Times:
        """Return the durations for a lease (emulated seconds) in a run that is ``dilation`` times slower."""
        usual = cls()
        return cls(
            lease_s=lease_s * dilation,
            guard_s=usual.guard_s * dilation,
            retry_s=min(usual.retry_s, lease_s / 4) * dilation,
            refresh_s=min(usual.refresh_s, lease_s / 4) * dilation,
            patience_s=usual.patience_s * dilation,
        )
