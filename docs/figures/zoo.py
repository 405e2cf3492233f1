"""Blocks of the fabrics that are compared on the same workloads."""

from __future__ import annotations

from docs.figures.parts import Block, Cell, Picture, Table, of, simulated
from docs.figures.words import milliseconds, number

_WORKLOADS = ("data", "hybrid", "experts", "pipeline")
#: The scenario says why.
_LEFT_OUT = ("sip-ring", "pipeline")
#: Counted parts, by column; a fabric has those of its kind.
_PARTS = ("nic_ports", "transceivers", "packet_ports", "optical_ports")
_ELECTRICAL, _SWITCHED, _RING = {0, 1, 2}, {0, 1, 3}, {0, 1}
#: By arm: its title, the name of its fabric, and the parts that this has.
_ARMS: dict[str, tuple[str, str, set[int]]] = {
    "ideal": ("ideal electrical switch", "ideal", _ELECTRICAL),
    "fat-even": ("fat tree 1:1, no collisions", "fat-even", _ELECTRICAL),
    "fat-tree": ("fat tree 1:1, hashed", "fat-tree", _ELECTRICAL),
    "leaf-1": ("leaf–spine 1:1, hashed", "leaf-1", _ELECTRICAL),
    "leaf-4": ("leaf–spine 4:1, hashed", "leaf-4", _ELECTRICAL),
    "servers": ("servers of 8 (2.4 Tbit/s), 400 Gbit/s between", "servers", _ELECTRICAL),
    "cap-400": ("400 Gbit/s for every pair", "cap-400", _ELECTRICAL),
    "cap-200": ("200 Gbit/s for every pair", "cap-200", _ELECTRICAL),
    "oddl": ("ODDL's grid", "oddl", _SWITCHED),
    "oddl-100": ("ODDL's grid, 100 Gbit/s", "oddl-100", _SWITCHED),
    "sip-ocs": ("SiP-OCS", "sip-ocs", _SWITCHED),
    "sip-ring": ("SiP-Ring", "sip-ring", _RING),
    "wrht-ring": ("WRHT's ring, other all-reduces", "wrht", _RING),
    "wrht": ("WRHT's ring, WRHT", "wrht", _RING),
    "one-shot": ("graph of degree 8, built once", "one-shot", _SWITCHED),
    "torus": ("torus 16 × 8 × 8", "torus", _SWITCHED),
    "rotor-two": ("rotors, over one GPU", "rotor-two", _SWITCHED),
    "rotor": ("rotors, straight", "rotor", _SWITCHED),
}


#: What stands behind a time for the all-reduce that has it, by how its name begins; a ring's has nothing.
_CALLED = {
    "ring": "",
    "bidirectional": " b",
    "hierarchical": " h",
    "halving": " d",
    "coprime": " e",
    "wrht": " w",
}


def _best(time_s: float, collective: str) -> str:
    return f"{milliseconds(time_s)}{_CALLED[collective.partition('-')[0]]}"


def _line(arm: str, title: str, fabric: str, has: set[int]) -> list[Cell]:
    def at(workload: str) -> dict[str, str]:
        return {"jobs.train.workload": workload}

    times = (
        "–"
        if (arm, name) == _LEFT_OUT
        else of(
            _best,
            *(simulated(arm, m, "job train", at(name)) for m in ("iteration_best", "iteration_best_at")),
        )
        for name in _WORKLOADS
    )
    # Counts are those of a fabric, whatever runs there.
    counted = "wrht-ring" if arm == "wrht" else arm
    counts = (
        of(number, simulated(counted, f"{part}_per_gpu", f"fabric {fabric}", at(_WORKLOADS[0])))
        if k in has
        else ""
        for k, part in enumerate(_PARTS)
    )
    return [title, *times, *counts]


BLOCKS: dict[str, Block] = {
    "picture-zoo": Picture(
        "zoo",
        "simulated",
        "winners",
        "zoo-winners.png",
        "Iteration time over the best fabric's, by fabric and workload",
    ),
    "zoo": Table(
        "zoo",
        "1,024 GPUs; ms of an iteration, parts per GPU | data | hybrid | experts | pipeline | NIC ports | "
        "fibre ends | packet ports | optical ports",
        [_line(arm, *one) for arm, one in _ARMS.items()],
    ),
}
