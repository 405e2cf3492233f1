"""A large ring in progress, each rank's sends as one stream of bytes.

On a ring a rank sends to the same one in every step, and in each step what it received in the step before. So
all that it sends is one flow, which follows that of the rank before it: it may be ahead of it by the chunk
that the rank had itself, less half a part, as a worker passes on a part of a chunk when it has the whole of
the part, and less what is on its way. Such flows change their rates only when one comes up with the one that
it follows, when it falls behind again, and at the ends: about as often as there are ranks, not as there are
transfers. :class:`ringlight.testbed.simulation.passing.PassingOn` follows every part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ringlight.fabric.steps import Steps
from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.exchange import Lanes
from ringlight.testbed.simulation.link_flows import LinkFlow
from ringlight.testbed.simulation.maxmin import rates
from ringlight.testbed.simulation.passing import PARTS


@dataclass(frozen=True)
class Segment:
    """Bytes of a stream, and the rate that they have at most, bytes per second."""

    size: float
    most: float


@dataclass(frozen=True)
class Stream:
    """Bytes that one rank sends to another, over the way of transfer ``k``.

    ``ahead``: the stream that it follows. It may be at most ``lead`` bytes ahead of that stream. ``end_s``:
    seconds for which its receiver adds up the last of it.
    """

    k: int
    source: int
    destination: int
    ahead: int
    lead: float
    segments: tuple[Segment, ...]
    end_s: float

    @property
    def size(self) -> float:
        """Return the number of bytes of the stream."""
        return sum(segment.size for segment in self.segments)


def first_of(steps: Steps) -> Steps:
    """Return the first step of a ring's schedule, whose lanes are those of all its steps."""
    first = next(iter(steps))
    return replace(steps, steps=1, make=lambda: iter([first]))


def streams_of(
    lanes: Lanes, steps: Steps, capacity: FloatArray, reduce_s_per_byte: float
) -> list[Stream]:
    """Return the streams of a ring's ranks.

    ``lanes``: of all steps; ``capacity``: of the network's links, bytes per second; ``reduce_s_per_byte``: as
    ``StepCost`` has it. Raises ValueError naming a transfer that has no way.

    A chunk takes at least ``pace_s``: once around the ring every chunk waits for its latencies and for the
    first part of it on each way (as :class:`ringlight.testbed.simulation.passing.Together` has it).
    """
    adds = [step.op == "reduce" for step in steps]
    offsets, links, latency_s = lanes.routes()
    shared = rates(np.array(offsets), np.array(links, dtype=np.int64), capacity)
    chunk_s = lanes.sizes / shared
    add_s = reduce_s_per_byte * lanes.sizes
    pace_s = float(np.mean(np.array(latency_s) + (chunk_s + add_s * any(adds)) / PARTS))
    slowest = float(shared.min())
    of_receiver = {destination: k for k, destination in enumerate(lanes.destinations)}
    streams = []
    for k, (source, destination) in enumerate(
        zip(lanes.sources, lanes.destinations, strict=True)
    ):
        chunk = float(lanes.sizes[k])
        late_s = latency_s[k] + float(add_s[k]) / PARTS * any(adds)
        half_part = chunk / (2 * PARTS)
        lead = max(chunk - half_part - slowest * late_s, half_part)
        adding = 1 / reduce_s_per_byte if reduce_s_per_byte else math.inf
        paced = chunk / pace_s if pace_s > chunk_s[k] else math.inf
        streams.append(
            Stream(
                k,
                source,
                destination,
                of_receiver[source],
                lead,
                _segments(chunk, adds, min(adding, paced), paced),
                float(add_s[k]) / PARTS if adds[-1] else 0.0,
            )
        )
    return streams


def _segments(
    chunk: float, adds: Sequence[bool], reducing: float, replacing: float
) -> tuple[Segment, ...]:
    """Return the segments of a stream of one chunk a step. Nothing follows the last chunk, so that it need
    not keep pace."""
    runs = [
        (reducing if add else replacing, len([*steps]))
        for add, steps in itertools.groupby(adds)
    ]
    if not adds[-1]:
        most, steps = runs.pop()
        runs += [(most, steps - 1), (math.inf, 1)]
    segments: list[Segment] = []
    for most, steps in runs:
        if segments and segments[-1].most == most:
            segments[-1] = Segment(segments[-1].size + steps * chunk, most)
        elif steps:
            segments.append(Segment(steps * chunk, most))
    return tuple(segments)


class Starting(Protocol):
    """Starts a flow on the way of a transfer after its latency, or once it has a way."""

    def __call__(self, stream: Stream, flow: LinkFlow) -> None: ...


class Streaming:
    """Execution of a ring's collective by ``ranks`` ranks.

    ``ended(rank)`` is called when a rank has all that it receives, and its peer all that it sends. ``over``:
    set it, and nothing more is begun.
    """

    def __init__(
        self,
        engine: Engine,
        lanes: Lanes,
        streams: Sequence[Stream],
        ranks: int,
        start: Starting,
        done: Callable[[LinkFlow], None],
        ended: Callable[[int], None],
    ) -> None:
        self.over = False
        self._engine, self._lanes, self._streams = engine, lanes, streams
        self._start, self._done, self._ended = start, done, ended
        self._left = [1] * ranks
        self._come = [False] * ranks
        self._sent: list[Stream | None] = [None] * ranks
        self._unheard: dict[int, Stream] = {}
        self._segment = [0] * len(streams)
        self._flows = [self._flow(number) for number in range(len(streams))]
        for number, stream in enumerate(streams):
            self._sent[stream.source] = stream
            self._left[stream.source] += 1
            self._left[stream.destination] += 1
            engine.follow(self._flows[number], self._flows[stream.ahead], stream.lead)

    def _flow(self, number: int) -> LinkFlow:
        first = self._streams[number].segments[0]

        def more(flow: LinkFlow) -> float:
            """Begin the next segment of a flow. Return its bytes, 0 at the end."""
            self._segment[number] += 1
            if self._segment[number] == len(self._streams[number].segments):
                return 0.0
            segment = self._streams[number].segments[self._segment[number]]
            self._engine.limit(flow, segment.most)
            return segment.size

        def done() -> None:
            stream = self._streams[number]
            self._done(self._flows[number])
            self._after(stream.end_s, self._arrived, stream)

        return LinkFlow(first.size, done, more, first.most)

    def continue_on(self, engine: Engine, ended: Callable[[int], None]) -> None:
        """Another engine has taken over what is under way."""
        self._engine, self._ended = engine, ended

    def begin(self, rank: int) -> None:
        """Called when the rank comes to the collective. Start its stream."""
        self._come[rank] = True
        stream = self._sent[rank]
        if stream is not None:
            self._start(stream, self._flows[stream.k])
        if rank in self._unheard:
            self._hear(self._unheard.pop(rank))
        self._less(rank)

    def _arrived(self, stream: Stream) -> None:
        if self.over:
            return
        if self._come[stream.destination]:
            self._hear(stream)
        else:
            self._unheard[stream.destination] = stream

    def _hear(self, stream: Stream) -> None:
        """Called when the receiver has all. Report that to the sender."""
        self._after(self._lanes.back_s(stream.k), self._less, stream.source)
        self._less(stream.destination)

    def _after(
        self, seconds: float, function: Callable[..., None], argument: int | Stream
    ) -> None:
        if seconds:
            self._engine.at(self._engine.now_s + seconds, function, argument)
        else:
            function(argument)

    def _less(self, rank: int) -> None:
        self._left[rank] -= 1
        if self._left[rank] == 0 and not self.over:
            self._ended(rank)
