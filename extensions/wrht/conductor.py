"""Conduct the light of a WDM ring, step by step of a collective. No I/O, no clock.

On a ring every node sends on fixed wavelengths, so which of its flows may send is a matter of the WSSs
between the nodes, and these are set for all nodes together. A *setting* is the state of all WSSs that one
step of the collective needs; where every step sets its light anew, one is made for each step even when that
one's stands. Senders open and close flows as they would with an O-NIC's agent; the
conductor keeps the step and says when the WSSs are to be changed.

A step is over when every one of its transfers has been closed by its sender. Then, as soon as somebody asks
for the next one, that one's setting is made. So light is never taken from a flow that has it, and flows of
two steps are never lit at once.

When connections break, a close may be lost, and who takes over from a conductor that died does not know what
was closed before. Then, to the end of the iteration (who takes over: of the next one, since ranks may be one
apart), a step counts as over when nobody asks for it, and who comes late with an earlier step is served
before anything new. That cannot get stuck, because a flow that is lit ends whatever else waits
(``containers/worker/transport.py``); at worst the WSSs are set more often.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

#: Sender and receiver, as GPU names.
Pair = tuple[str, str]
Flow = Hashable
Client = Hashable


class Configure(NamedTuple):
    """Set the WSSs for a step, while nothing is lit; answer with ``configured`` or ``unconfigured``."""

    setting: int
    step: int


class ConductorLit(NamedTuple):
    """The flow may send."""

    flow: Flow


class Closed(NamedTuple):
    """The flow was closed as asked."""

    flow: Flow


class Failed(NamedTuple):
    """Effect: the flow has ended without light. It may be opened again."""

    flow: Flow
    reason: str


class Lost(NamedTuple):
    """Effect: the flow lost its light before it was closed, and has ended. The sender must open a new one."""

    flow: Flow
    reason: str


Effect = Configure | ConductorLit | Closed | Failed | Lost


class _Asked:
    """An open flow."""

    __slots__ = ("client", "lit", "pair", "step")

    def __init__(self, client: Client, pair: Pair, step: int) -> None:
        self.client, self.pair, self.step = client, pair, step
        self.lit = False


class Conductor:
    """State machine of a ring's light. Every method returns the effects to carry out, in order.

    ``steps``: the pairs of each step of one iteration, at least one; their settings are 0, 1, … ``resumed``:
    flows may have been closed before this conductor was made. The conductor then lights nothing until
    :meth:`settle`, which is called when workers have had the time to open their flows. ``each_step``: the
    setting is made again for each step, also of a later iteration.
    """

    def __init__(
        self,
        steps: Sequence[frozenset[Pair]],
        *,
        resumed: bool = False,
        each_step: bool = False,
    ) -> None:
        self._steps = steps
        self._each_step = each_step
        self._flows: dict[Flow, _Asked] = {}
        self._done: dict[int, set[Pair]] = {}
        self._step: int | None = None if resumed else 0
        #: Steps before this one count as over when nobody asks for them.
        self._strict_from = 0
        self._holding = resumed
        self._setting: int | None = None
        self._wanted: int | None = None
        #: The step whose flows may be lit.
        self._serving: int | None = None
        #: The step for which the last setting was asked.
        self._set_for: int | None = None

    # Looking

    @property
    def step(self) -> int | None:
        """Present step, continued over iterations; None before it is known."""
        return self._step

    @property
    def setting(self) -> int | None:
        """Setting in place; None while it changes."""
        return self._setting

    def flows(self) -> list[tuple[Flow, Pair, int, bool]]:
        """Return the open flows in order of arrival: flow, pair, step, and whether the flow has light."""
        return [
            (flow, request.pair, request.step, request.lit)
            for flow, request in self._flows.items()
        ]

    # Events

    def open(
        self, flow: Flow, client: Client, pair: Pair, step: int | None = None
    ) -> list[Effect]:
        """Open a flow for which ``client`` (a connection) requests light for ``pair``. Return the effects.

        ``flow`` must not be open. ``step`` is continued over iterations; it may be left out if there is only
        one step (a link test).
        """
        if step is None:
            if len(self._steps) > 1:
                return [
                    Failed(flow, f"there are {len(self._steps)} steps: say the step")
                ]
            step = self._step or 0
        source, destination = pair
        if step < 0 or pair not in self._steps[step % len(self._steps)]:
            return [
                Failed(flow, f"{source} sends nothing to {destination} in step {step}")
            ]
        self._flows[flow] = _Asked(client, pair, step)
        return self._next()

    def close(self, flow: Flow) -> list[Effect]:
        """Close an open flow that is fully acknowledged or no longer wanted. Return the effects."""
        request = self._flows.pop(flow)
        if self._step is None or request.step >= self._step:
            self._done.setdefault(request.step, set()).add(request.pair)
        return [Closed(flow), *self._next()]

    def gone(self, client: Client) -> list[Effect]:
        """Forget the flows of a connection that has ended; they may be opened again. Return the effects."""
        mine = [
            flow for flow, request in self._flows.items() if request.client == client
        ]
        if not mine:
            return []
        for flow in mine:
            del self._flows[flow]
        self._loosen(1)
        return self._next()

    def settle(self) -> list[Effect]:
        """End the time in which workers may still open flows. Return the effects, none unless ``resumed``."""
        if not self._holding:
            return []
        self._holding = False
        return self._next()

    def configured(self) -> list[Effect]:
        """Record that the requested setting is in place. Return the effects."""
        assert self._wanted is not None
        self._setting, self._wanted = self._wanted, None
        return self._next()

    def unconfigured(self, reason: str) -> list[Effect]:
        """Fail the flows that wait for the requested setting, which could not be made. Return the effects."""
        assert self._wanted is not None
        setting, self._wanted = self._wanted, None
        waiting = [
            f
            for f, request in self._flows.items()
            if request.step % len(self._steps) == setting
        ]
        for flow in waiting:
            del self._flows[flow]
        return [*(Failed(flow, reason) for flow in waiting), *self._next()]

    def darkened(self, reason: str) -> list[Effect]:
        """Take the light from the flows that have it, because the setting was lost. Return the effects."""
        if self._wanted is not None:
            return []
        self._setting = None
        lit_flows = [flow for flow, request in self._flows.items() if request.lit]
        for flow in lit_flows:
            del self._flows[flow]
        return [*(Lost(flow, reason) for flow in lit_flows), *self._next()]

    # Transitions

    def _loosen(self, iterations: int) -> None:
        if self._step is not None:
            length = len(self._steps)
            self._strict_from = max(
                self._strict_from, (self._step // length + iterations) * length
            )

    def _next(self) -> list[Effect]:
        if self._holding or self._wanted is not None:
            return []
        if not any(request.lit for request in self._flows.values()):
            # Else who belongs to what is lit may join; everybody else waits for its end.
            self._serving = self._choose()
        if self._serving is None:
            return []
        setting = self._serving % len(self._steps)
        if setting != self._setting or (
            self._each_step and self._serving != self._set_for
        ):
            self._setting, self._wanted, self._set_for = None, setting, self._serving
            return [Configure(setting, self._serving)]
        effects: list[Effect] = []
        for flow, request in self._flows.items():
            if not request.lit and request.step == self._serving:
                request.lit = True
                effects.append(ConductorLit(flow))
        return effects

    def _choose(self) -> int | None:
        """Return the step whose turn it is, when nothing is lit; None if there is none."""
        least = min((request.step for request in self._flows.values()), default=None)
        if least is None:
            return None
        if self._step is None:
            self._step = least
            self._loosen(2)
        while self._step < least and self._over(self._step):
            self._done.pop(self._step, None)
            self._step += 1
        return least if least <= self._step else None

    def _over(self, step: int) -> bool:
        pairs = self._steps[step % len(self._steps)]
        return step < self._strict_from or pairs <= self._done.get(step, set())
