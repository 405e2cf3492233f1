"""A fabric that is divided anew again and again by what is still to be sent: light that follows demand.

Every period begins with a decision from the bytes under way, as the GPUs' transports count them. Then light
is dark while it is retuned, and shines until the next decision. That is SiP-Ring's loop,
with 100 us between decisions and 20 us dark in the authors' simulator; others of demand-driven circuits
(c-Through, Helios, TopoOpt's comparator) differ in what decides and in the times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from testbed.simulation.arrays import FloatArray
from testbed.simulation.engine import Engine
from testbed.simulation.workload import Execution

#: Capacities in bits per second [links] from the bytes that have yet to pass each link.
Decide = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Interval:
    """Seconds that a decision holds (``live_s``), and that all light is dark before it does (``dark_s``).

    Raises ValueError for times that cannot be, among them light that would be dark for longer than it shines.
    """

    live_s: float
    dark_s: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.live_s) and self.live_s > 0):
            raise ValueError(f"an interval of {self.live_s} s; it must be above 0")
        if not (math.isfinite(self.dark_s) and self.dark_s >= 0):
            raise ValueError(f"a dark time of {self.dark_s} s; it must be 0 or more")
        if self.live_s < self.dark_s:
            raise ValueError(
                f"an interval of {self.live_s:g} s is shorter than the dark time of {self.dark_s:g} s"
            )


class Reallocation:
    """Divides the network of an execution anew while it runs; ``first_bps`` [links] holds from the start.

    ``decisions``: how many there have been; ``dark_s``: seconds in which bytes were under way and light was
    dark. It ends by itself when the execution is over, or when nothing could happen any more.
    """

    def __init__(
        self, engine: Engine, execution: Execution, first_bps: FloatArray, interval: Interval, decide: Decide
    ) -> None:
        self.decisions, self.dark_s = 0, 0.0
        self._engine, self._execution, self._interval, self._decide = engine, execution, interval, decide
        self._now_bps = first_bps
        self._left: FloatArray | None = None

    def begin(self) -> None:
        """The first decision is made one interval from now."""
        self._execution.set_capacity(self._now_bps)
        self._again()

    def _again(self) -> None:
        self._engine.at(self._engine.now_s + self._interval.live_s, self._decision)

    def _decision(self) -> None:
        if self._execution.over:
            return
        left = self._execution.remaining()
        # What rounding leaves of a transfer that ends now.
        left[(left < 1) & (self._now_bps > 0)] = 0.0
        if not left.any():
            # With nothing else to come, ranks wait for each other for ever, and that is for others to say.
            if self._engine.next_event_s() < math.inf:
                self._again()
            return
        self.decisions += 1
        then_bps = self._decide(left)
        if np.array_equal(then_bps, self._now_bps) and self._stands_still(left):
            raise ValueError(
                f"after {self.decisions} decisions nothing moves any more: {(left > 0).sum()} pairs have "
                f"something to send, and {((left > 0) & (then_bps == 0)).sum()} of them get no light"
            )
        self._left = left
        if not self._interval.dark_s:
            self._shine(then_bps)
            return
        self.dark_s += self._interval.dark_s
        self._execution.set_capacity(np.zeros_like(then_bps))
        self._engine.at(self._engine.now_s + self._interval.dark_s, lambda: self._shine(then_bps))

    def _stands_still(self, left: FloatArray) -> bool:
        """Whether nothing has passed since the last decision, and nothing else will happen by itself.

        Ranks in lock-step are all held up by one pair without light, which the same demand gets again.
        """
        same = self._left is not None and np.array_equal(left, self._left)
        return same and self._engine.next_event_s() == math.inf

    def _shine(self, then_bps: FloatArray) -> None:
        self._now_bps = then_bps
        self._execution.set_capacity(then_bps)
        self._again()
