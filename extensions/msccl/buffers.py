"""Places of a collective's chunks in MSCCL's buffers, before it and after it.

Chunks are those of ``fabric.kinds``: of one vector, numbered alike at every rank. MSCCL numbers what a GPU
has in its input and in its output, so an all-gather's input begins at 0 at every GPU.
"""

from __future__ import annotations

from ringlight.extensions.msccl.elements import BufferPlace, Program

EXCHANGES = ("all-to-all", "all-to-all-v")


def chunks_of(program: Program) -> int:
    """Return the number of chunks of the whole vector.

    Raises ValueError if the file's number of chunks does not divide.
    """
    n = program.ranks
    if program.kind not in ("all-reduce", "broadcast", "reduce") and program.chunks % n:
        what = f"nchunksperloop {program.chunks} cannot be divided among {n} GPUs"
        program.wrong(program.line, what)
    return program.chunks * (n if program.kind in EXCHANGES else 1)


def before(program: Program, chunk: int) -> BufferPlace:
    """Return the place of a chunk that a rank holds before the collective."""
    if program.kind == "all-gather":
        return BufferPlace("i", chunk % (program.chunks // program.ranks))
    return BufferPlace("i", chunk % program.chunks)


def after(program: Program, chunk: int) -> BufferPlace:
    """Return the place of a chunk that a rank needs after the collective."""
    part = program.chunks // program.ranks
    if program.kind == "reduce-scatter":
        return BufferPlace("o", chunk % part)
    if program.kind in EXCHANGES:
        return BufferPlace("o", chunk // program.chunks * part + chunk % part)
    return BufferPlace("o", chunk)


def memory(program: Program, rank: int, place: BufferPlace) -> BufferPlace:
    """Return the place under which the memory of a place is known: in place, input and output are one."""
    if not program.in_place or place.buffer == "s":
        return place
    own = rank * (program.chunks // program.ranks)
    if program.kind == "all-gather":
        return BufferPlace("o", own + place.offset) if place.buffer == "i" else place
    if program.kind == "reduce-scatter":
        return BufferPlace("i", own + place.offset) if place.buffer == "o" else place
    return BufferPlace("i", place.offset)
