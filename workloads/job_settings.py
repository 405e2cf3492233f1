"""Describe the settings of a job's workers once, with their limits, from a scenario to a worker.

A scenario file's keys become these fields, as emulated; the controller's API takes them by the same names and
holds them to the limits; a worker gets what has passed. Nothing here needs numpy, which a link test's workers
start without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Limit:
    """Least and greatest value of a setting. ``above``: it must be more than the least. ``step``: it is a
    multiple of that."""

    least: int
    most: int
    above: bool = False
    step: int | None = None

    def admits(self, value: float) -> bool:
        """Return whether a setting may have this value."""
        enough = value > self.least if self.above else value >= self.least
        return (
            enough
            and value <= self.most
            and (self.step is None or value % self.step == 0)
        )


#: How many times as long as others a rank may compute.
SLOWER = Limit(0, 1000, above=True)
_TIMEOUT_S = Limit(0, 3600, above=True)


def _limited(default: Any, limit: Limit) -> Any:
    return field(default=default, metadata={"limit": limit})


@dataclass(frozen=True, kw_only=True)
class Training:
    """Data-parallel training: each rank computes for ``compute_s``, then all reduce ``gradient_bytes``, in
    which the model's parameters fit (``containers/worker/model.py``), and again. Seconds and bytes as
    emulated."""

    collective: str = "ring"
    gradient_bytes: int = _limited(16384, Limit(9640, 1 << 30, step=4))
    compute_s: float = _limited(0.0, Limit(0, 3600))
    batch: int = _limited(28, Limit(1, 100_000))
    seed: int = _limited(0, Limit(0, (1 << 32) - 1))
    learning_rate: float = _limited(0.05, Limit(0, 1000, above=True))


@dataclass(frozen=True, kw_only=True)
class JobSettings(Training):
    """Settings that all workers of a job have in common.

    ``workload``: what they do; ``port``: on which each listens. ``go_timeout_s``: how long a ready worker
    waits for its start. ``beacon_interval_s``: 0 sends no beacons. ``checkpoint_every``: iterations from one
    checkpoint to the next. ``light``: what light follows (``workloads.following``).
    """

    workload: str = "train"
    port: int = _limited(29500, Limit(1, 65535))
    iterations: int = _limited(1, Limit(1, 1_000_000))
    connect_timeout_s: float = _limited(60.0, _TIMEOUT_S)
    peer_timeout_s: float = _limited(15.0, _TIMEOUT_S)
    go_timeout_s: float = _limited(600.0, _TIMEOUT_S)
    interface: str = "eth0"
    beacon_interval_s: float = _limited(0.0, Limit(0, 60))
    checkpoint_every: int = _limited(1, Limit(1, 1_000_000))
    light: str | None = None


#: Names of what a training job is told besides how long and how patient it is.
TRAINING = tuple(entry.name for entry in fields(Training))
#: Limits of settings, by name.
LIMITS: Mapping[str, Limit] = {
    entry.name: entry.metadata["limit"]
    for entry in fields(JobSettings)
    if "limit" in entry.metadata
}
