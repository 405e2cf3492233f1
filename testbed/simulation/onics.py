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
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringlight.controller.onic import protocol
from ringlight.fabric.planes.grid.wavelengths import Ways
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
        self, engine: Engine, fabric: Fabric, ways: Ways,
        control: ControlNetwork | None = None, times: protocol.Times | None = None,
        finished: Callable[[str, protocol.Finished], None] | None = None,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._told_finished = finished
        self._control = control or ControlNetwork()
        self._delays = _delays(self._control)
        self.waits_s: list[float] = []
        self.queued = 0
        self._sent = [0] * (1 + max(protocol.KINDS))
        self.overlaps = 0
        self._lit_at: dict[tuple[str, int], Hashable] = {}
        self._flow = itertools.count(1)
        self._open: dict[int, _Asked] = {}
        self._busy_s: dict[str, float] = {}
        self._watched: set[str] = set()
        times = times or protocol.Times()
        self._look_s = times.retry_s / 2
        self._times = times
        self._fabric = fabric
        self._onics: dict[str, protocol.Onic] = {}
        self._ways: dict[str, Mapping[str, Any]] = {}
        self._tuning_s: dict[str, float] = {}
        self.assign(ways)

    def assign(self, ways: Ways) -> None:
        """Give nodes their wavelength maps, those of a job that comes; the others keep theirs."""
        reach: dict[object, protocol.Reach] = {}
        now_s = self._engine.now_s
        for node, peers in ways.items():
            onic = self._onics.get(node)
            if onic is None:
                ports = self._fabric.onics[node].ports
                onic = self._onics[node] = protocol.Onic(1, self._times, now_s, ports=ports, quarantine=False)
                self._tuning_s[node] = self._fabric.onics[node].tuning_s
            self._ways[node] = peers
            mine: Mapping[Hashable, protocol.Reach] = {
                peer: reach.setdefault(way, protocol.Reach(way.port, way.wavelength))
                for peer, way in peers.items()
            }
            self._carry_out(node, onic.set_map(now_s, mine))

    # The gate.

    def open(
        self, source: str, destination: str, lit: Callable[[], None], failed: Callable[[str], None]
    ) -> Hashable:
        flow = next(self._flow)
        self._open[flow] = _Asked(source, destination, self._engine.now_s, lit, failed)
        onic = self._onics.get(source)
        if onic is None:
            raise ValueError(f"{source} is not one of the job's nodes")
        # The caller must have the handle before anything comes of it.
        self._engine.at(self._engine.now_s, lambda: self._ask(source, flow, destination))
        return flow

    def _ask(self, source: str, flow: int, destination: str) -> None:
        if flow in self._open:
            self._did(source, self._onics[source].open(self._engine.now_s, flow, destination))

    def close(self, handle: Hashable) -> None:
        assert isinstance(handle, int)
        asked = self._open.pop(handle, None)
        if asked is None:
            return
        if asked.receiver is not None and self._lit_at.get(asked.receiver) == handle:
            del self._lit_at[asked.receiver]
        self._did(asked.source, self._onics[asked.source].close(self._engine.now_s, handle))

    # Carrying out what the state machines say.

    def _did(self, node: str, effects: list[protocol.Effect]) -> None:
        self._carry_out(node, effects)
        if node not in self._watched:
            self._watch(node)

    def _watch(self, node: str) -> None:
        """Looks at the node's next deadline now, and then often enough to be there in time.

        To ask after every message would take most of the time. No deadline that the protocol sets is less
        than ``retry_s`` ahead, so it is enough to look again after half of it.
        """
        deadline_s = self._onics[node].next_deadline()
        if deadline_s is None:
            self._watched.discard(node)
            return
        self._watched.add(node)
        now_s = self._engine.now_s
        self._engine.at(min(max(deadline_s, now_s), now_s + self._look_s), lambda: self._look(node))

    def _look(self, node: str) -> None:
        onic, now_s = self._onics[node], self._engine.now_s
        deadline_s = onic.next_deadline()
        if deadline_s is not None and deadline_s <= now_s:
            self._carry_out(node, onic.timer(now_s))
        self._watch(node)

    def _carry_out(self, node: str, effects: list[protocol.Effect]) -> None:
        engine = self._engine
        for effect in effects:
            if effect.__class__ is protocol.Send:
                self._sent[effect.message.kind] += 1
                self._send(node, effect.peer, effect.message)
            elif isinstance(effect, protocol.Tune):
                ready_s = engine.now_s + self._tuning_s[node]
                engine.at(ready_s, lambda port=effect.port: self._tuned(node, port))  # type: ignore[misc]
            elif isinstance(effect, protocol.Lit):
                self._lit(effect.flow)
            elif isinstance(effect, protocol.Finished):
                self.queued += effect.waited
                if self._told_finished is not None:
                    self._told_finished(node, effect)
            elif isinstance(effect, protocol.Failed | protocol.Lost):
                assert isinstance(effect.flow, int)
                asked = self._open.pop(effect.flow, None)
                if asked is not None:
                    asked.failed(f"no light from {asked.source} to {asked.destination}: {effect.reason}")

    def _tuned(self, node: str, port: int) -> None:
        now_s = self._engine.now_s
        self._did(node, self._onics[node].tuned(now_s, port, now_s))

    def _send(self, sender: str, peer: Hashable, message: protocol.Message) -> None:
        assert isinstance(peer, str)
        time_s = self._engine.now_s + next(self._delays) + self._control.handle_s
        self._engine.at(time_s, lambda: self._handle(sender, peer, message))

    def _handle(self, sender: str, peer: str, message: protocol.Message) -> None:
        """The message has been handled, unless its receiver had another in hand when it came."""
        now_s, handle_s = self._engine.now_s, self._control.handle_s
        free_s = self._busy_s.get(peer, 0.0)
        if free_s > now_s - handle_s:
            self._busy_s[peer] = free_s + handle_s
            self._engine.at(free_s + handle_s, lambda: self._receive(sender, peer, message))
        else:
            self._busy_s[peer] = now_s
            self._receive(sender, peer, message)

    def _receive(self, sender: str, peer: str, message: protocol.Message) -> None:
        self._did(peer, self._onics[peer].receive(self._engine.now_s, sender, message))

    def _lit(self, flow: Hashable) -> None:
        assert isinstance(flow, int)
        asked = self._open.get(flow)
        if asked is None:
            return
        self.waits_s.append(self._engine.now_s - asked.opened_s)
        asked.receiver = (asked.destination, self._ways[asked.source][asked.destination].port)
        if asked.receiver in self._lit_at:
            self.overlaps += 1
        self._lit_at[asked.receiver] = flow
        asked.lit()

    @property
    def messages(self) -> dict[str, int]:
        """How many of each kind have been sent."""
        return {name: count for kind, name in protocol.KINDS.items() if (count := self._sent[kind])}

    def counts(self) -> Counter[str]:
        """The state machines' own counters, summed over all nodes."""
        total: Counter[str] = Counter()
        for onic in self._onics.values():
            total.update(onic.counts)
        return total

    def idle(self) -> bool:
        """Whether no control unit has anything left to do."""
        return all(onic.idle() for onic in self._onics.values())


def _delays(control: ControlNetwork) -> Iterator[float]:
    """The time on the way of each message, one after the other, seconds."""
    if not control.jitter:
        yield from itertools.repeat(control.control_s)
    random = np.random.default_rng(control.seed)
    while True:
        for more_s in random.exponential(control.jitter * control.control_s, 1024).tolist():
            yield control.control_s + more_s


@dataclass
class _Asked:
    source: str
    destination: str
    opened_s: float
    lit: Callable[[], None]
    failed: Callable[[str], None]
    receiver: tuple[str, int] | None = None
