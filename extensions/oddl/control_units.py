"""The O-NICs' control units under virtual time: the very state machines that the agents run.

A message takes ``control_s`` on the control network, more by an exponential share of it (``jitter``), and
``handle_s`` of its receiver's time; a control unit handles one message after the other. So what a flow waits
for its light comes out of the protocol, not out of a formula.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ringlight.controller.onic import control_messages, effects, lease_times, protocol
from ringlight.controller.onic.effects import Send
from ringlight.extensions.oddl.wavelengths import Ways
from ringlight.fabric.topology import Fabric
from ringlight.testbed.simulation.engine import Engine


@dataclass(frozen=True)
class ControlNetwork:
    """Times of the control plane, seconds. ``jitter``: mean of a random delay, as a share of ``control_s``.

    Raises ValueError for a negative one.
    """

    control_s: float = 10e-6
    handle_s: float = 1e-6
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("control_s", "handle_s", "jitter"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; it must be 0 or more")


class OnicPlane:
    """The control units of all nodes of the jobs on a grid: a gate for a ``Simulation`` of jobs.

    ``ways`` are the jobs' wavelength maps (``ways_for``), together. ``waits_s`` are the seconds
    from request to light of every flow that has had light so far; ``messages`` counts them by kind.
    ``overlaps`` counts light that came to a receiver which another still had: it is 0 unless the protocol is
    wrong. ``finished`` is called with the source and the life of every flow that had light, once its receiver
    has confirmed its release.
    """

    def __init__(
        self,
        engine: Engine,
        fabric: Fabric,
        ways: Ways,
        control: ControlNetwork | None = None,
        times: lease_times.Times | None = None,
        finished: Callable[[str, effects.Finished], None] | None = None,
    ) -> None:
        self._engine = engine
        self._told_finished = finished
        control = control or ControlNetwork()
        self._handle_s = control.handle_s
        self._delays = _delays(control)
        self.waits_s: list[float] = []
        self.queued = 0
        self._sent = [0] * (1 + max(control_messages.KINDS))
        self.overlaps = 0
        self._lit_at: dict[tuple[str, int], Hashable] = {}
        self._flow = itertools.count(1)
        self._open: dict[int, _LightRequest] = {}
        times = times or lease_times.Times()
        self._look_s = times.confirm_s
        self._times = times
        self._fabric = fabric
        self._units: dict[str, _Unit] = {}
        self.assign(ways)

    def assign(self, ways: Ways) -> None:
        """Give nodes their wavelength maps, those of a job that comes; the others keep theirs."""
        now_s = self._engine.now_s
        for node, peers in ways.items():
            unit = self._units.get(node)
            if unit is None:
                part = self._fabric.onics[node]
                onic = protocol.Onic(
                    1, self._times, now_s, ports=part.ports, quarantine=False
                )
                unit = self._units[node] = _Unit(node, onic, part.tuning_s)
            unit.ways = peers
            self._carry_out(unit, unit.onic.set_map(now_s, peers))

    # The gate.

    def open(
        self,
        source: str,
        destination: str,
        on_lit: Callable[[], None],
        failed: Callable[[str], None],
    ) -> Hashable:
        flow = next(self._flow)
        unit = self._units.get(source)
        if unit is None:
            raise ValueError(f"{source} is not one of the job's nodes")
        now_s = self._engine.now_s
        self._open[flow] = _LightRequest(unit, destination, now_s, on_lit, failed)
        # The caller must have the handle before anything comes of it.
        self._engine.at(now_s, self._ask, unit, flow, destination)
        return flow

    def _ask(self, unit: _Unit, flow: int, destination: str) -> None:
        if flow in self._open:
            self._did(unit, unit.onic.open(self._engine.now_s, flow, destination))

    def close(self, handle: Hashable) -> None:
        assert isinstance(handle, int)
        request = self._open.pop(handle, None)
        if request is None:
            return
        if (
            request.receiver is not None
            and self._lit_at.get(request.receiver) == handle
        ):
            del self._lit_at[request.receiver]
        self._did(request.unit, request.unit.onic.close(self._engine.now_s, handle))

    # Carrying out what the state machines say.

    def _did(self, unit: _Unit, effects: list[effects.Effect]) -> None:
        self._carry_out(unit, effects)
        if not unit.watched:
            self._watch(unit)

    def _watch(self, unit: _Unit) -> None:
        """Look at the node's next deadline now, and then often enough to be there in time.

        To look after every message would take most of the time. No deadline that the protocol sets is less
        than ``confirm_s`` ahead, so it is enough to look again after that.
        """
        deadline_s = unit.onic.next_deadline()
        unit.watched = deadline_s is not None
        if deadline_s is not None:
            now_s = self._engine.now_s
            self._engine.at(
                min(max(deadline_s, now_s), now_s + self._look_s), self._look, unit
            )

    def _look(self, unit: _Unit) -> None:
        now_s = self._engine.now_s
        deadline_s = unit.onic.next_deadline()
        if deadline_s is not None and deadline_s <= now_s:
            self._carry_out(unit, unit.onic.timer(now_s))
        self._watch(unit)

    def _carry_out(self, unit: _Unit, effects: list[effects.Effect]) -> None:
        """Most of a simulation's events are messages: what is done for each is kept short."""
        engine = self._engine
        for effect in effects:
            kind = effect.__class__
            if kind is Send:
                peer, message = effect  # type: ignore[misc]
                self._sent[message[0]] += 1
                time_s = engine.now_s + next(self._delays) + self._handle_s
                engine.at(time_s, self._handle, self._units[peer], unit.node, message)
            elif (do := _ACTIONS.get(kind)) is not None:
                do(self, unit, effect)

    def _tune(self, unit: _Unit, effect: effects.Tune) -> None:
        self._engine.at(
            self._engine.now_s + unit.tuning_s, self._tuned, unit, effect.port
        )

    def _finished(self, unit: _Unit, effect: effects.Finished) -> None:
        self.queued += effect.waited
        if self._told_finished is not None:
            self._told_finished(unit.node, effect)

    def _over(self, _: _Unit, effect: effects.Failed | effects.Lost) -> None:
        assert isinstance(effect.flow, int)
        request = self._open.pop(effect.flow, None)
        if request is not None:
            request.failed(
                f"no light from {request.unit.node} to {request.destination}: {effect.reason}"
            )

    def _tuned(self, unit: _Unit, port: int) -> None:
        now_s = self._engine.now_s
        self._did(unit, unit.onic.tuned(now_s, port, now_s))

    def _handle(
        self, unit: _Unit, sender: str, message: control_messages.Message
    ) -> None:
        """Handle a message, or do so later if its receiver was busy with another when it came."""
        now_s, handle_s = self._engine.now_s, self._handle_s
        free_s = unit.busy_s
        if free_s > now_s - handle_s:
            unit.busy_s = free_s + handle_s
            self._engine.at(free_s + handle_s, self._receive, unit, sender, message)
            return
        unit.busy_s = now_s
        effects = unit.onic.receive(now_s, sender, message)
        if effects:
            self._carry_out(unit, effects)
        if not unit.watched:
            self._watch(unit)

    def _receive(
        self, unit: _Unit, sender: str, message: control_messages.Message
    ) -> None:
        self._did(unit, unit.onic.receive(self._engine.now_s, sender, message))

    def _lit(self, _: _Unit, effect: effects.FlowLit) -> None:
        flow = effect.flow
        request = self._open.get(flow)
        if request is None:
            return
        self.waits_s.append(self._engine.now_s - request.opened_s)
        request.receiver = (
            request.destination,
            request.unit.ways[request.destination].port,
        )
        if request.receiver in self._lit_at:
            self.overlaps += 1
        self._lit_at[request.receiver] = flow
        request.on_lit()

    @property
    def messages(self) -> dict[str, int]:
        """Return how many messages of each kind have been sent."""
        return {
            name: count
            for kind, name in control_messages.KINDS.items()
            if (count := self._sent[kind])
        }

    def counts(self) -> Counter[str]:
        """Return the state machines' own counters, summed over all nodes."""
        total: Counter[str] = Counter()
        for unit in self._units.values():
            total.update(unit.onic.counts)
        return total

    def idle(self) -> bool:
        """Return whether no control unit has anything left to do."""
        return all(unit.onic.idle() for unit in self._units.values())


#: What is done about each effect but a message; nothing about the others: light goes on, or out, by itself.
_ACTIONS: dict[type, Callable[[OnicPlane, _Unit, Any], None]] = {
    effects.Tune: OnicPlane._tune,
    effects.FlowLit: OnicPlane._lit,
    effects.Finished: OnicPlane._finished,
    effects.Failed: OnicPlane._over,
    effects.Lost: OnicPlane._over,
}


def _delays(control: ControlNetwork) -> Iterator[float]:
    """Yield the time on the way of each message, one after the other, in seconds."""
    if not control.jitter:
        yield from itertools.repeat(control.control_s)
    random = np.random.default_rng(control.seed)
    while True:
        for more_s in random.exponential(
            control.jitter * control.control_s, 1024
        ).tolist():
            yield control.control_s + more_s


@dataclass(slots=True)
class _Unit:
    """A node's control unit. ``busy_s``: until when it has messages in hand. ``watched``: its next deadline
    will be looked at."""

    node: str
    onic: protocol.Onic
    tuning_s: float
    ways: Mapping[str, Any] = field(default_factory=dict)
    busy_s: float = 0.0
    watched: bool = False


@dataclass(slots=True)
class _LightRequest:
    unit: _Unit
    destination: str
    opened_s: float
    on_lit: Callable[[], None]
    failed: Callable[[str], None]
    receiver: tuple[str, int] | None = None
