"""Parse an MSCCL file, element by element: algo > gpu > tb > step, all in attributes.

Expat itself reads it, because Expat reports the line of each element. A file with a document type is refused,
and without one there are no entities that could grow or name other files; nothing nests deeper than four.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn
from xml.parsers import expat

#: MSCCL's names for kinds; the first of two is the one that we write.
KIND_OF = {
    "allreduce": "all-reduce",
    "reducescatter": "reduce-scatter",
    "reduce_scatter": "reduce-scatter",
    "allgather": "all-gather",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all-to-all",
    "alltoallv": "all-to-all-v",
}
#: What a step does with a message that it receives and one that it sends; "re" and "cpy" do neither.
RECEIVES = ("r", "rcs", "rrs", "rrc", "rrcs")
SENDS = ("s", "rcs", "rrs", "rrcs")
TYPES = (*RECEIVES, "s", "cpy", "re", "nop")
BUFFERS = ("i", "o", "s")
_WITHIN = {"algo": "", "gpu": "algo", "tb": "gpu", "step": "tb"}
_NUMBER = re.compile(r"-?[0-9]{1,9}")


class BufferPlace(NamedTuple):
    """A chunk of a GPU's buffer: "i"nput, "o"utput or "s"cratch."""

    buffer: str
    offset: int


@dataclass(frozen=True)
class MscclAction:
    """A step of a thread block, on ``count`` chunks from ``source`` and ``target`` on.

    ``after``: thread block and number of the step of this GPU that must have ended. ``our_step``: our
    own step in which it is sent, None in files of others.
    """

    number: int
    type: str
    source: BufferPlace
    target: BufferPlace
    count: int
    after: tuple[int, int] | None
    our_step: int | None
    line: int


@dataclass
class Block:
    """A thread block: its steps in order; ``send`` and ``recv`` are GPUs, -1 for none."""

    number: int
    send: int
    recv: int
    channel: int
    actions: list[MscclAction] = field(default_factory=list)


@dataclass
class Gpu:
    """A GPU; ``sizes``: chunks of each buffer; ``peers``: what its thread blocks have to themselves."""

    number: int
    sizes: dict[str, int]
    line: int
    blocks: dict[int, Block] = field(default_factory=dict)
    peers: set[tuple[str, int, int]] = field(default_factory=set)


@dataclass
class Program:
    """A file. ``chunks``: into which the runtime cuts the larger of a GPU's input and output."""

    file: str
    name: str
    kind: str
    ranks: int
    chunks: int
    in_place: bool
    root: int
    step_by_step: bool
    line: int
    gpus: dict[int, Gpu] = field(default_factory=dict)

    def wrong(self, line: int, what: str) -> NoReturn:
        """Raise ValueError for a line of the file."""
        raise ValueError(f"{self.file}, line {line}: {what}")


def parse(data: bytes, file: str) -> Program:
    """Return the elements of a file called ``file``. Raises ValueError, in one line with the file's."""
    return _Parser(file).parse(data)


class _Parser:
    def __init__(self, file: str) -> None:
        self._file = file
        self._open: list[str] = []
        self._program: Program | None = None
        self._now: Gpu
        self._block: Block
        self._expat = expat.ParserCreate("utf-8")
        self._expat.StartElementHandler = self._begin
        self._expat.EndElementHandler = self._end
        self._expat.StartDoctypeDeclHandler = self._document_type

    def parse(self, data: bytes) -> Program:
        try:
            self._expat.Parse(data, True)
        except expat.ExpatError as error:
            message = expat.ErrorString(error.code)
            raise ValueError(f"{self._file}, line {error.lineno}: {message}") from None
        if self._program is None:
            self._wrong("there is no algo")
        _check(self._program)
        return self._program

    def _wrong(self, what: str) -> NoReturn:
        raise ValueError(f"{self._file}, line {self._expat.CurrentLineNumber}: {what}")

    def _document_type(self, *_: object) -> NoReturn:
        self._wrong("a document type, which an algorithm does not need")

    def _end(self, _: str) -> None:
        self._open.pop()

    def _begin(self, tag: str, attributes: dict[str, str]) -> None:
        outer = self._open[-1] if self._open else ""
        if _WITHIN.get(tag) != outer:
            self._wrong(f"{tag[:40]!r} does not belong into {outer or 'a file'}")
        self._open.append(tag)
        {"algo": self._algo, "gpu": self._gpu, "tb": self._tb, "step": self._step}[tag](
            attributes
        )

    def _number(
        self,
        attributes: dict[str, str],
        key: str,
        least: int = 0,
        most: int = 999_999_999,
        default: int | None = None,
    ) -> int:
        """Return an attribute that is a whole number from ``least`` to ``most``, or ``default``.

        Raises ValueError for another value, and for one that is missing without a default.
        """
        text = attributes.get(key)
        if text is None:
            if default is None:
                self._wrong(f"{self._open[-1]} has no {key}")
            return default
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            self._wrong(
                f"{self._open[-1]} has {key} {text[:40]!r}, not a whole number from {least} to {most}"
            )
        return int(text)

    def _one_of(
        self, attributes: dict[str, str], key: str, there: tuple[str, ...]
    ) -> str:
        word = attributes.get(key)
        if word not in there:
            said_so = "no" if word is None else repr(word[:40])
            self._wrong(
                f"{self._open[-1]} has {said_so} {key}; there are {', '.join(there)}"
            )
        return word

    def _algo(self, attributes: dict[str, str]) -> None:
        name = attributes.get("name", "msccl")
        if not name.isprintable() or len(name) > 100:
            self._wrong(
                f"algo has the name {name[:40]!r}; up to 100 letters that can be printed may stand there"
            )
        ranks = self._number(attributes, "ngpus", 1)
        self._program = Program(
            self._file,
            name,
            KIND_OF[self._one_of(attributes, "coll", tuple(KIND_OF))],
            ranks,
            self._number(attributes, "nchunksperloop", 1),
            bool(self._number(attributes, "inplace", 0, 1, default=0)),
            self._number(attributes, "root", 0, ranks - 1, default=0),
            bool(self._number(attributes, "step_by_step", 0, 1, default=0)),
            self._expat.CurrentLineNumber,
        )

    def _gpu(self, attributes: dict[str, str]) -> None:
        program = self._known()
        number = self._number(attributes, "id", 0, program.ranks - 1)
        if number in program.gpus:
            self._wrong(f"a second gpu {number}")
        sizes = {
            buffer: self._number(attributes, f"{buffer}_chunks") for buffer in BUFFERS
        }
        self._now = program.gpus[number] = Gpu(
            number, sizes, self._expat.CurrentLineNumber
        )

    def _tb(self, attributes: dict[str, str]) -> None:
        program = self._known()
        gpu = self._now
        number = self._number(attributes, "id")
        if number in gpu.blocks:
            self._wrong(f"a second tb {number} of gpu {gpu.number}")
        send, recv = (
            self._number(attributes, key, -1, program.ranks - 1)
            for key in ("send", "recv")
        )
        if gpu.number in (send, recv):
            self._wrong(
                f"tb {number} of gpu {gpu.number} sends to itself or receives from itself"
            )
        channel = self._number(attributes, "chan")
        peers = {
            (way, peer, channel)
            for way, peer in (("send", send), ("recv", recv))
            if peer >= 0
        }
        if gpu.peers & peers:
            self._wrong(f"tb {number} has the peer and the channel of another")
        gpu.peers |= peers
        gpu.blocks[number] = self._block = Block(number, send, recv, channel)

    def _step(self, attributes: dict[str, str]) -> None:
        gpu, block = self._now, self._block
        number = self._number(attributes, "s")
        if block.actions and number <= block.actions[-1].number:
            self._wrong(f"step {number} behind step {block.actions[-1].number}")
        kind = self._one_of(attributes, "type", TYPES)
        if (kind in SENDS and block.send < 0) or (kind in RECEIVES and block.recv < 0):
            self._wrong(f"step {number} is {kind}, and its tb has no such peer")
        idle = kind == "nop"
        count = self._number(attributes, "cnt", 0 if idle else 1)
        source, target = (self._place(attributes, word) for word in ("src", "dst"))
        for place, used in (
            (source, kind not in ("r", "rcs")),
            (target, kind not in ("s", "rrs")),
        ):
            if (
                used
                and not idle
                and not 0 <= place.offset <= gpu.sizes[place.buffer] - count
            ):
                what = f"chunks {place.offset} to {place.offset + count - 1} of buffer {place.buffer}"
                self._wrong(f"there are no {what}, which has {gpu.sizes[place.buffer]}")
        tb, step = (
            self._number(attributes, key, -1, default=-1) for key in ("depid", "deps")
        )
        if (tb < 0) != (step < 0):
            self._wrong("depid and deps are both -1 or none of them")
        our_step = self._number(attributes, "at") if "at" in attributes else None
        after = (tb, step) if tb >= 0 else None
        line = self._expat.CurrentLineNumber
        block.actions.append(
            MscclAction(number, kind, source, target, count, after, our_step, line)
        )

    def _place(self, attributes: dict[str, str], word: str) -> BufferPlace:
        buffer = self._one_of(attributes, f"{word}buf", BUFFERS)
        return BufferPlace(buffer, self._number(attributes, f"{word}off", -1))

    def _known(self) -> Program:
        assert self._program is not None
        return self._program


def _check(program: Program) -> None:
    """Check what depends on the whole file: that all GPUs are there, and all steps that others wait for.

    Raises ValueError if one is missing.
    """
    if len(program.gpus) < program.ranks:
        missing = next(
            rank for rank in range(program.ranks) if rank not in program.gpus
        )
        program.wrong(program.line, f"there is no gpu {missing} of {program.ranks}")
    for gpu in program.gpus.values():
        blocks = gpu.blocks.values()
        steps = {
            (block.number, action.number)
            for block in blocks
            for action in block.actions
        }
        for block in blocks:
            for action in block.actions:
                if action.after is not None and action.after not in steps:
                    tb, step = action.after
                    program.wrong(
                        action.line,
                        f"it waits for step {step} of tb {tb}, which there is not",
                    )
