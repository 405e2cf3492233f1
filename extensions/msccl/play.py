"""Plays an MSCCL file, to find which ranks' values are in each chunk of each buffer.

Thread blocks run at the same time, as far as messages and dependencies let them. A message takes what is in
the buffer when it is sent, and waits for its receiver as long as it must.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

import numpy as np

from ringlight.extensions.msccl.buffers import after, before, chunks_of, memory
from ringlight.extensions.msccl.elements import (
    RECEIVES,
    SENDS,
    Block,
    BufferPlace,
    MscclAction,
    Program,
)
from ringlight.extensions.msccl.order import Order
from ringlight.fabric.kinds import holds, needs


class Value(NamedTuple):
    """Sum of some ranks' values of ``chunk``: bit r of ``of`` stands for rank r.

    Bit k of ``through`` says that the value was in the chunk's k-th piece. ``piece``: the piece that brought
    it here; -1 if it was added to a value here, or was here from the beginning.
    """

    chunk: int
    of: int
    through: int
    piece: int


class Piece(NamedTuple):
    """A chunk in a message, the ``bit``-th of its chunk; ``of`` and ``through`` as in :class:`Value`.

    ``our_step``: the step that the file names, -1 for none.
    """

    source: int
    destination: int
    chunk: int
    of: int
    our_step: int
    message: int
    bit: int
    through: int


class Played(NamedTuple):
    """Transfers of a program, and for each piece whether its receiver added it to its own."""

    pieces: list[Piece]
    added: list[bool]


def play(program: Program) -> Played:
    """Play a file and return what was sent.

    Raises ValueError, in one line with the file's, for what cannot be done, a race, and a wrong end.
    """
    return _Play(program).run()


class _Play:
    def __init__(self, program: Program) -> None:
        self._program = program
        n, chunks = program.ranks, chunks_of(program)
        self._held = holds(program.kind, n, chunks, program.root)
        self._needed = needs(program.kind, n, chunks, program.root)
        self._cells: dict[tuple[int, BufferPlace], Value] = {}
        for rank, chunk in np.argwhere(self._held).tolist():
            place = memory(program, rank, before(program, chunk))
            self._cells[rank, place] = Value(chunk, 1 << rank, 0, -1)
        self._blocks = [
            (gpu.number, block)
            for gpu in program.gpus.values()
            for block in gpu.blocks.values()
        ]
        self._awaited = {
            (rank, *action.after)
            for rank, block in self._blocks
            for action in block.actions
            if action.after
        }
        self._order = Order()
        #: By GPU and thread block, and by GPU, thread block and step where another waits for it.
        self._past_of_block: dict[tuple[int, int], int] = {}
        self._past_of: dict[tuple[int, int, int], int] = {}
        #: By sender, receiver and channel: the values of each message, its past, and its line.
        self._under_way: dict[
            tuple[int, int, int], deque[tuple[list[Value], int, int]]
        ] = {}
        self._messages = 0
        self._pieces_of: Counter[int] = Counter()
        self._played = Played([], [])

    def run(self) -> Played:
        next_of = [0] * len(self._blocks)
        progress = True
        while progress:
            progress = False
            for k, (rank, block) in enumerate(self._blocks):
                while next_of[k] < len(block.actions) and self._can(
                    rank, block, block.actions[next_of[k]]
                ):
                    action = block.actions[next_of[k]]
                    self._take(rank, block, action)
                    next_of[k] += 1
                    progress = True
        for k, (rank, block) in enumerate(self._blocks):
            if next_of[k] < len(block.actions):
                waits = block.actions[next_of[k]]
                what = (
                    f"gpu {rank}, tb {block.number}, step {waits.number} waits for ever"
                )
                self._program.wrong(waits.line, what)
        for (source, destination, _), messages in self._under_way.items():
            for _, _, line in messages:
                self._program.wrong(
                    line,
                    f"gpu {destination} never receives what gpu {source} sends here",
                )
        self._check_end()
        return self._played

    def _can(self, rank: int, block: Block, action: MscclAction) -> bool:
        if action.after is not None and (rank, *action.after) not in self._past_of:
            return False
        return action.type not in RECEIVES or bool(
            self._under_way.get((block.recv, rank, block.channel))
        )

    def _take(self, rank: int, block: Block, action: MscclAction) -> None:
        """Take a step, which must wait for nothing any more."""
        past = self._past_of_block.get((rank, block.number), 0)
        if action.after is not None:
            past |= self._past_of[rank, *action.after]
        came: list[Value] = []
        if action.type in RECEIVES:
            came, sent_after, line = self._under_way[
                block.recv, rank, block.channel
            ].popleft()
            past |= sent_after
            if len(came) != action.count:
                what = f"it receives {action.count} chunks of the {len(came)} that are sent in line {line}"
                self._program.wrong(action.line, what)
        self._order.begin(action.line, past)
        values = self._do(rank, action, came)
        past = self._order.end()
        if action.type in SENDS:
            self._send(rank, block, action, values, past)
        self._past_of_block[rank, block.number] = past
        if (place := (rank, block.number, action.number)) in self._awaited:
            self._past_of[place] = past

    def _do(self, rank: int, action: MscclAction, came: list[Value]) -> list[Value]:
        """Return the values that a step makes of its chunks and of the chunks that it has received.

        A step with a target also writes them there.
        """
        kind = action.type
        if kind == "nop":
            return []
        if kind in ("r", "rcs"):
            values = came
        elif kind in ("s", "cpy"):
            values = self._read(rank, action.source, action)
        elif kind == "re":
            added = self._read(rank, action.source, action)
            values = self._sums(self._read(rank, action.target, action), added, action)
        else:
            values = self._sums(self._read(rank, action.source, action), came, action)
        if kind not in ("s", "rrs"):
            for k, value in enumerate(values):
                cell = self._cell(rank, action.target, k)
                self._ordered(self._order.writes(cell), rank, action.target, k, action)
                self._cells[cell] = value
        return values

    def _cell(self, rank: int, place: BufferPlace, k: int) -> tuple[int, BufferPlace]:
        return rank, memory(
            self._program, rank, BufferPlace(place.buffer, place.offset + k)
        )

    def _ordered(
        self,
        other: int | None,
        rank: int,
        place: BufferPlace,
        k: int,
        action: MscclAction,
    ) -> None:
        if other is not None:
            what = f"chunk {place.offset + k} of buffer {place.buffer} of gpu {rank}"
            self._program.wrong(
                action.line,
                f"nothing says whether line {other}, too at {what}, comes first",
            )

    def _read(self, rank: int, place: BufferPlace, action: MscclAction) -> list[Value]:
        values = []
        for k in range(action.count):
            cell = self._cell(rank, place, k)
            self._ordered(self._order.reads(cell), rank, place, k, action)
            value = self._cells.get(cell)
            if value is None:
                what = (
                    f"chunk {place.offset + k} of buffer {place.buffer} of gpu {rank}"
                )
                self._program.wrong(action.line, f"there is nothing in {what}")
            values.append(value)
        return values

    def _sums(
        self, mine: list[Value], summands: list[Value], action: MscclAction
    ) -> list[Value]:
        sums = []
        for a, b in zip(mine, summands, strict=True):
            if a.chunk != b.chunk:
                self._program.wrong(
                    action.line, f"it adds chunk {b.chunk} to chunk {a.chunk}"
                )
            if twice := a.of & b.of:
                again = twice.bit_length() - 1
                self._program.wrong(
                    action.line, f"it adds the value of gpu {again} a second time"
                )
            # Where neither was here from the beginning, one of them stays what is added to.
            added = b.piece if b.piece >= 0 else a.piece
            if added >= 0:
                self._played.added[added] = True
            stays = a.piece if b.piece >= 0 else -1
            sums.append(Value(a.chunk, a.of | b.of, a.through | b.through, stays))
        return sums

    def _send(
        self,
        rank: int,
        block: Block,
        action: MscclAction,
        values: list[Value],
        past: int,
    ) -> None:
        brought = []
        for value in values:
            chunk, bit = value.chunk, self._pieces_of[value.chunk]
            self._pieces_of[chunk] += 1
            brought.append(
                Value(
                    chunk, value.of, value.through | 1 << bit, len(self._played.pieces)
                )
            )
            step = -1 if action.our_step is None else action.our_step
            way = (rank, block.send)
            piece = Piece(
                *way, chunk, value.of, step, self._messages, bit, value.through
            )
            self._played.pieces.append(piece)
            self._played.added.append(False)
        self._messages += 1
        channel = (rank, block.send, block.channel)
        self._under_way.setdefault(channel, deque()).append(
            (brought, past, action.line)
        )

    def _check_end(self) -> None:
        program = self._program
        everyone = [
            sum(1 << rank for rank in np.flatnonzero(row).tolist())
            for row in self._held.T
        ]
        for rank, chunk in np.argwhere(self._needed).tolist():
            place = after(program, chunk)
            value = self._cells.get((rank, memory(program, rank, place)))
            if value is None or (value.chunk, value.of) != (chunk, everyone[chunk]):
                where = f"chunk {place.offset} of buffer {place.buffer} of gpu {rank}"
                program.wrong(
                    program.gpus[rank].line,
                    f"{where} does not end with what {program.kind} puts there",
                )
