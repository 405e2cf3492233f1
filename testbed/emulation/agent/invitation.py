"""Make guests beside workers, each by its kind."""

from __future__ import annotations

from collections.abc import Sequence

from ringlight.fabric.guests import guest_kinds
from ringlight.testbed.emulation.guests import Guest, GuestPlan
from ringlight.testbed.emulation.worker_hosts import WorkerHost


def invite(
    plan: GuestPlan, host: WorkerHost, peers: Sequence[str], image: str | None
) -> Guest:
    """Return a guest in the network of a worker, not started yet.

    ``peers``: addresses of all ranks; ``image``: that of workers. Raises WorkerError, and ValueError if there
    is no such kind.
    """
    if (kind := guest_kinds().get(plan.kind)) is None:
        raise ValueError(f"there are no guests of kind {plan.kind} here")
    guest: Guest = kind.invite()(host, plan.settings, peers, image)
    return guest
