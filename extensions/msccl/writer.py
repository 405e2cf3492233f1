"""A schedule of ours as an MSCCL file, which reads back equal.

Each GPU has a thread block for each GPU that it sends to and for each that it receives from, on channel 0. A
send waits for what came into its chunks before, a receive for what had to leave them; of several steps that
one waits for, all but the last stand in nops before it. All is in place but an all-to-all, in which chunks
that pass through a GPU are in its scratch. ``at`` of a send is our step, for which MSCCL has no word; it has
none for wavelengths either, which are left out. MSCCL runs at most 256 steps in a thread block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import quoteattr

from ringlight.extensions.msccl.buffers import EXCHANGES
from ringlight.extensions.msccl.elements import KIND_OF, BufferPlace
from ringlight.fabric.steps import Steps
from ringlight.workloads.formats.files import write_bytes

#: Thread block and step.
Point = tuple[int, int]
_NOP = {
    "type": "nop",
    "srcbuf": "i",
    "srcoff": -1,
    "dstbuf": "o",
    "dstoff": -1,
    "cnt": 0,
}
#: An algorithm is for messages from ``minBytes`` to ``maxBytes``.
_ANY_SIZE = {"minBytes": 0, "maxBytes": 1 << 40}


def msccl_text(kind: str, steps: Steps, root: int = 0) -> str:
    """Return a schedule for a kind of collective, ``root`` of a broadcast or a reduce, as MSCCL XML."""
    n = steps.world_size
    part = steps.chunks // (n * n) if kind in EXCHANGES else 0
    gpus = [_Gpu(rank, n, kind, part) for rank in range(n)]
    for number, step in enumerate(steps):
        columns = (step.sources, step.destinations, step.first, step.count)
        rows = [
            (source, destination, range(first, first + count))
            for source, destination, first, count in zip(
                *(c.tolist() for c in columns), strict=True
            )
        ]
        # All of a step's sends come first: they take what was there before it.
        for source, destination, chunks in rows:
            gpus[source].send(destination, chunks, number)
        for source, destination, chunks in rows:
            gpus[destination].receive(
                source, chunks, "rrc" if step.op == "reduce" else "r"
            )
    for gpu in gpus:
        gpu.keep_own()
    chunks_per_loop = part * n or steps.chunks
    about = {
        "name": steps.name,
        "proto": "Simple",
        "nchannels": 1,
        "nchunksperloop": chunks_per_loop,
    }
    about |= {
        "ngpus": n,
        "coll": next(word for word, name in KIND_OF.items() if name == kind),
    }
    about |= {"inplace": int(not part), "outofplace": int(bool(part)), **_ANY_SIZE}
    about |= {"root": root, "step_by_step": int(steps.step_by_step)}
    inside = [line for gpu in gpus for line in gpu.lines(chunks_per_loop)]
    return "\n".join([f"<algo{_said(about)}>", *inside, "</algo>", ""])


def write_msccl(path: Path, kind: str, steps: Steps, root: int = 0) -> None:
    """Write the file whole or not at all. Raises ValueError."""
    write_bytes(path, msccl_text(kind, steps, root).encode())


class _Gpu:
    """A GPU's thread blocks while they are written. ``part``: chunks from a GPU to one in an all-to-all."""

    def __init__(self, rank: int, ranks: int, kind: str, part: int) -> None:
        self._rank, self._ranks, self._part = rank, ranks, part
        self._buffer = "o" if kind == "all-gather" else "i"
        self._number_of: dict[tuple[str, int], int] = {}
        self._steps: list[list[dict[str, object]]] = []
        self._scratch: dict[int, int] = {}
        #: By chunk: the step that brought it last, and those that have sent it since.
        self._came: dict[int, Point] = {}
        self._left: defaultdict[int, set[Point]] = defaultdict(set)

    def send(self, peer: int, chunks: range, step: int) -> None:
        for run in self._runs(chunks):
            point = self._add(
                "send", peer, run, self._brought(run), {"type": "s", "at": step}
            )
            for chunk in run:
                self._left[chunk].add(point)

    def receive(self, peer: int, chunks: range, type_: str) -> None:
        for run in self._runs(chunks):
            waits = self._brought(run) | {
                point for chunk in run for point in self._left.pop(chunk, ())
            }
            point = self._add("recv", peer, run, waits, {"type": type_})
            self._came |= dict.fromkeys(run, point)

    def keep_own(self) -> None:
        """Copy the part that a GPU has for itself in an all-to-all."""
        if self._part:
            place = {
                "srcoff": self._rank * self._part,
                "dstoff": self._rank * self._part,
            }
            attributes = {
                "type": "cpy",
                "srcbuf": "i",
                "dstbuf": "o",
                **place,
                "cnt": self._part,
            }
            self._append("own", -1, attributes, set())

    def lines(self, chunks: int) -> Iterator[str]:
        scratch = len(self._scratch) * self._part
        sizes = {"i_chunks": chunks, "o_chunks": chunks, "s_chunks": scratch}
        yield f"  <gpu{_said({'id': self._rank, **sizes})}>"
        for (way, peer), number in self._number_of.items():
            peers = {"send": -1, "recv": -1} | ({} if way == "own" else {way: peer})
            yield f"    <tb{_said({'id': number, **peers, 'chan': 0})}>"
            for s, attributes in enumerate(self._steps[number]):
                yield f"      <step{_said({'s': s, **attributes})}/>"
            yield "    </tb>"
        yield "  </gpu>"

    def _runs(self, chunks: range) -> Iterator[range]:
        """Yield runs of chunks that are one behind the other at every GPU."""
        first = chunks.start
        while first < chunks.stop:
            stop = (
                min(chunks.stop, first - first % self._part + self._part)
                if self._part
                else chunks.stop
            )
            yield range(first, stop)
            first = stop

    def _place(self, chunk: int) -> BufferPlace:
        if not self._part:
            return BufferPlace(self._buffer, chunk)
        block, within = divmod(chunk, self._part)
        source, destination = divmod(block, self._ranks)
        if self._rank == source:
            return BufferPlace("i", destination * self._part + within)
        if self._rank == destination:
            return BufferPlace("o", source * self._part + within)
        return BufferPlace(
            "s",
            self._scratch.setdefault(block, len(self._scratch)) * self._part + within,
        )

    def _brought(self, run: range) -> set[Point]:
        return {self._came[chunk] for chunk in run if chunk in self._came}

    def _add(
        self,
        way: str,
        peer: int,
        run: range,
        waits: set[Point],
        attributes: Mapping[str, object],
    ) -> Point:
        buffer, offset = self._place(run.start)
        place = {
            "srcbuf": buffer,
            "srcoff": offset,
            "dstbuf": buffer,
            "dstoff": offset,
            "cnt": len(run),
        }
        return self._append(way, peer, {**attributes, **place}, waits)

    def _append(
        self, way: str, peer: int, attributes: Mapping[str, object], waits: set[Point]
    ) -> Point:
        """Append a step to the thread block for a peer, behind the nops that it needs. Return its place."""
        number = self._number_of.setdefault((way, peer), len(self._number_of))
        if number == len(self._steps):
            self._steps.append([])
        # A thread block's latest step stands for its earlier ones; within this block the order holds anyway.
        latest: dict[int, int] = {}
        for block, step in waits:
            if block != number:
                latest[block] = max(step, latest.get(block, 0))
        *earlier, last = sorted(latest.items()) or [(-1, -1)]
        waiting = [*((_NOP, point) for point in earlier), (attributes, last)]
        for what, (block, step) in waiting:
            self._steps[number].append(
                {**what, "depid": block, "deps": step, "hasdep": 0}
            )
        for block, step in latest.items():
            self._steps[block][step]["hasdep"] = 1
        return number, len(self._steps[number]) - 1


def _said(attributes: Mapping[str, object]) -> str:
    return "".join(
        f" {key}={quoteattr(str(value))}" for key, value in attributes.items()
    )
