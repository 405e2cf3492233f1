"""Records of a run with averagers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlight.experiments.record.events import Record


class NetworkTried(Record, event="network"):
    """An averager's network compared with the exact mean: combinations of inputs, those answered differently,
    and the largest distance of an output from its level."""

    averager: str
    inputs: int
    wrong: int
    worst: float


class AveragersCounted(Record, event="averagers"):
    """Counters of the averagers' processes after a run, by name. ``table``: the table of the unit (``inputs``,
    ``wrong``, ``worst``). Since the run began: ``frames``, ``codes``, ``bytes_in`` and ``bytes_out`` by port,
    ``cpu_s``, ``sessions``, ``resets`` and answers ``checked``. ``latency_s``: latency of the latest frames, from
    their last byte to the first byte of the answer. ``restarted``: whether the averager was restarted during the
    run, in which case its counters begin there."""

    averagers: Mapping[str, Mapping[str, Any]]
