"""A ring of servers whose transceivers choose paths, simulated."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ringlight.extensions.sip_ml.divided.hop_ring import HopRing
from ringlight.fabric.steps import Step
from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.networks import Places, Routes, capacity_of


class HopRingNetwork:
    """A transfer takes the sender's transceiver and the receiver's that faces it.

    Raises ValueError for a step with GPUs that reach each other by no path, or a transceiver with two.
    """

    def __init__(
        self,
        gpus: Sequence[str],
        ring: HopRing,
        *,
        latency_s: float = 0.0,
        share: float = 1.0,
    ) -> None:
        self._places, self._ring, self._latency_s = Places(gpus), ring, latency_s
        #: Out of each GPU's two transceivers, then into them.
        rate_bps = capacity_of("of a transceiver", ring.path_bps, share)
        self.capacity_bps: FloatArray = np.full(4 * len(gpus), rate_bps)

    def key(self, link: int) -> Hashable:
        into, end = divmod(link, 2 * len(self._places.gpus))
        gpu, port = divmod(end, 2)
        return ("into" if into else "out of", self._places.gpus[gpu], port)

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        source, destination = self._places.ends(ranks, step)
        pairs = list(zip(source.tolist(), destination.tolist(), strict=True))
        ports, problems = self._ring.choose(pairs)
        if problems:
            raise ValueError(f"step {number}: {problems[0]}")
        port = np.array([ports[pair] for pair in pairs], dtype=np.int64)
        into = 2 * len(self._places.gpus) + 2 * destination + 1 - port
        links = np.stack((2 * source + port, into), axis=1)
        return Routes(
            2 * np.arange(len(pairs) + 1),
            links.ravel(),
            np.full(len(pairs), self._latency_s),
        )
