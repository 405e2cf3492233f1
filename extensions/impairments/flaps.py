"""Links that go down and come back by themselves, again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ringlight.testbed.simulation.link_courses import Passage
from ringlight.testbed.simulation.tcp import resumed_s


@dataclass(frozen=True)
class _Turn:
    """A change that is to come; what waits for nothing else waits for nothing."""

    act: Callable[[], None]

    def __call__(self) -> None:
        self.act()


class Flap:
    """Link that flaps from now on: down for ``down_s`` seconds, then up for ``up_s``, and so on.

    A sender into the link while it is down finds out by a time-out. It sends again after that time, and after
    twice as long each time.
    """

    def __init__(self, passage: Passage, down_s: float, up_s: float) -> None:
        self._engine, self._links = passage.engine, passage.links
        self._time_out_s, self._restored = passage.time_out_s, passage.restored
        self._down_s, self._up_s = down_s, up_s
        self._since_s = self._engine.now_s
        self._armed = self.over = False
        self.wake()

    @property
    def is_down(self) -> bool:
        period_s = self._down_s + self._up_s
        # A hair before the end of a phase is its end.
        return (
            self._engine.now_s - self._since_s + 1e-9 * period_s
        ) % period_s < self._down_s

    def wake(self) -> None:
        """Something may happen again, so that it matters whether the link is up."""
        if not self._armed and not self.over:
            self._turn()

    def settle(self) -> None:
        """Set the link down in a network that has changed, if it is down now."""
        if not self.over and self.is_down:
            for link, _ in self._links():
                self._engine.set_capacity(link, 0.0)

    def end(self) -> None:
        """End the flaps. The link is up from now on."""
        was_down = self.is_down
        self.over = True
        if was_down:
            self._restore()

    def _turn(self) -> None:
        self._armed = False
        if self.over:
            return
        engine, down = self._engine, self.is_down
        # Whatever can move has been told when it will end; not so just after the link has come up.
        idle = down and not engine.awaits(lambda act: isinstance(act, _Turn))
        if down:
            self.settle()
        else:
            self._restore()
        if not idle:
            self._armed = True
            engine.at(max(self._next_s(down), engine.now_s), _Turn(self._turn))

    def _next_s(self, down: bool) -> float:
        """Return when the present phase ends, in seconds of virtual time."""
        period_s = self._down_s + self._up_s
        number = (self._engine.now_s - self._since_s + 1e-9 * period_s) // period_s
        return self._since_s + number * period_s + (self._down_s if down else period_s)

    def _restore(self) -> None:
        for link, capacity in self._links():
            self._engine.set_capacity(link, capacity)
            self._engine.hold_back(
                link, lambda stood_s: resumed_s(stood_s, self._time_out_s)
            )
        self._restored()
