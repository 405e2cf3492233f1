"""Divides a fabric's light again and again by what is still to be sent.

Each period but the first begins with a decision from the bytes still to be sent, as the GPUs' transports
count them. Light shines on as before while the decision is made. Then it is dark while it is retuned, and
shines until the next decision takes effect. That is SiP-Ring's loop, with no time to decide, 20 us dark and
100 us of light in the authors' simulator; others of demand-driven circuits (c-Through, Helios, TopoOpt's
comparator) differ in what decides and in the times.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.workload import Execution

#: Capacities in bits per second [links] from the bytes that have yet to pass each link.
Decide = Callable[[FloatArray], FloatArray]


class Reallocation:
    """Divides an execution's network repeatedly while it runs; ``first_bps`` [links] holds from the start.

    A decision holds for ``live_s`` seconds (above 0); before it, all light is dark for ``dark_s`` seconds. It
    is made of the bytes that were still to be sent ``decision_s`` seconds before the dark. One at a time is
    made, so if it takes longer than ``live_s``, each holds until the next is made. ``decisions``: how many
    there have been; ``dark_s``: seconds in which bytes were to be sent and light was dark. ``trace``: keep
    what each was made for. It ends by itself when the execution is over, or when nothing could happen any
    more.
    """

    def __init__(
        self,
        engine: Engine,
        execution: Execution,
        first_bps: FloatArray,
        live_s: float,
        dark_s: float,
        decide: Decide,
        *,
        decision_s: float = 0.0,
        trace: bool = False,
    ) -> None:
        self.decisions, self.dark_s = 0, 0.0
        self._engine, self._execution, self._decide = engine, execution, decide
        self._live_s, self._dark_s, self._now_bps = live_s, dark_s, first_bps
        self._decision_s = decision_s
        #: Of each division, the first included: when it was lit, the bytes [links] it was made for, and bits
        #: per second [links].
        self.made: list[tuple[float, FloatArray, FloatArray]] | None = (
            [] if trace else None
        )
        self._left: FloatArray | None = None
        self._moved: float | None = None

    def begin(self) -> None:
        """Begin with the present rates. The first division that is decided takes effect one interval from
        now.
        """
        self._shine(self._now_bps)

    def _again(self) -> None:
        """Read what is left so long before the present division ends as a decision takes."""
        self._engine.at(
            self._engine.now_s + max(self._live_s - self._decision_s, 0.0), self._read
        )

    def _read(self) -> None:
        if self._execution.over:
            return
        left = self._execution.remaining()
        # What rounding leaves of a transfer that ends now.
        left[(left < 1) & (self._now_bps > 0)] = 0.0
        if not left.any():
            # With nothing else to come, ranks wait for each other for ever, and that is for others to say.
            if self._engine.next_event_s() < math.inf:
                self._engine.at(self._engine.now_s + self._live_s, self._read)
            return
        self.decisions += 1
        then_bps = self._decide(left)
        if np.array_equal(then_bps, self._now_bps) and self._stands_still(left):
            raise ValueError(
                f"after {self.decisions} decisions nothing moves any more: {(left > 0).sum()} pairs have "
                f"something to send, and {((left > 0) & (then_bps == 0)).sum()} of them get no light"
            )
        self._left = left
        if self._decision_s:
            self._engine.at(
                self._engine.now_s + self._decision_s, lambda: self._divide(then_bps)
            )
        else:
            self._divide(then_bps)

    def _divide(self, then_bps: FloatArray) -> None:
        if self._execution.over:
            return
        if not self._dark_s:
            self._shine(then_bps)
            return
        self.dark_s += self._dark_s
        self._execution.set_capacity(np.zeros_like(then_bps))
        self._engine.at(
            self._engine.now_s + self._dark_s, lambda: self._shine(then_bps)
        )

    def _stands_still(self, left: FloatArray) -> bool:
        """Return whether nothing has passed since the last decision, and nothing else will happen by itself.

        Ranks in lock-step are all held up by one pair without light, which the same demand gets again.
        """
        same = self._left is not None and np.array_equal(left, self._left)
        if not same or self._engine.next_event_s() < math.inf:
            self._moved = None
            return False
        # As much may be left of other transfers, that took the places of the first.
        before, self._moved = self._moved, float(self._execution.moved().sum())
        return before == self._moved

    def _shine(self, then_bps: FloatArray) -> None:
        self._now_bps = then_bps
        if self.made is not None:
            left = np.zeros_like(then_bps) if self._left is None else self._left
            self.made.append((self._engine.now_s, left, then_bps))
        self._execution.set_capacity(then_bps)
        self._again()
