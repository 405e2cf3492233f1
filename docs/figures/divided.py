"""Blocks of light that is divided by demand, on the testbed."""

from __future__ import annotations

from docs.figures.parts import Block, Cell, Picture, Table, measured, of, simulated
from docs.figures.words import apart, number, seconds

TRAIN = "job train"


def _row(title: str, arm: str, *, divided: bool = True) -> list[Cell]:
    iterations = (figure(arm, "iteration", TRAIN) for figure in (simulated, measured))
    return [
        title,
        of(number, measured(arm, "divisions", TRAIN)),
        of(seconds, measured(arm, "division_decide", TRAIN)) if divided else "",
        of(seconds, measured(arm, "division_dark", TRAIN)) if divided else "",
        of(seconds, measured(arm, "iteration", TRAIN)),
        of(seconds, simulated(arm, "iteration", TRAIN)),
        of(apart, *iterations),
        of(number, measured(arm, "results_checked", TRAIN)),
        of(number, measured(arm, "light_bytes_wrong", TRAIN)),
    ]


BLOCKS: dict[str, Block] = {
    "picture-sip-ml-8": Picture(
        "sip_ml_8",
        "measured",
        "divisions",
        "divisions.png",
        "Bytes under way at each division of light, on circuit switches and on a ring",
    ),
    "sip-ml-8": Table(
        "sip_ml_8",
        "eight GPUs | divisions | decided in | dark | iteration, emulated | simulated | difference | "
        "results checked | bytes wrong",
        [
            _row("SiP-OCS, set once", "sip-ocs", divided=False),
            _row("SiP-OCS, every 5 ms", "sip-ocs-divided"),
            _row("SiP-OCS, every 7.4 ms", "sip-ocs-7400-us"),
            _row("SiP-OCS, every 7.6 ms", "sip-ocs-7600-us"),
            _row("SiP-Ring, every 5 ms", "sip-ring"),
        ],
    ),
    "sip-ml-8-resonance": Table(
        "sip_ml_8_resonance",
        "divided every | divisions | decided in | dark | iteration, emulated | simulated | difference | "
        "results checked | bytes wrong",
        [_row("7.1 ms", "below"), _row("7.32 ms", "dip"), _row("7.7 ms", "above")],
    ),
}
