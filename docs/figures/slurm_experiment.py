"""Blocks of jobs that come through Slurm."""

from __future__ import annotations

from collections.abc import Mapping

from docs.figures.parts import Block, Cell, Picture, Table, of, simulated
from docs.figures.words import ratio

RUN = "run"
_ARMS = {
    "flat": "`flat`",
    "tree": "`tree`",
    "follow": "`follow`",
    "lead": "`lead`",
}


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


def _line(arm: str, name: str) -> list[Cell]:
    means = [
        of(_seconds, simulated(arm, metric, RUN))
        for metric in ("waited_mean", "slurm_completion_mean", "makespan")
    ]
    spanning = of(str, simulated(arm, "slurm_spanning", RUN))
    if arm == "tree":
        return [name, spanning, *means, "1"]
    over = of(ratio, simulated(arm, "slurm_completion_mean_ratio", RUN))
    return [name, spanning, *means, over]


BLOCKS: Mapping[str, Block] = {
    "slurm-worth": Table(
        "examples/slurm",
        "arm | jobs that span leaves | mean wait | mean, submission to end | all jobs | mean over `tree`'s",
        [_line(arm, name) for arm, name in _ARMS.items()],
    ),
    "slurm-picture": Picture(
        "examples/slurm",
        "simulated",
        "slurm",
        "slurm.png",
        "Queue, light and jobs of the four arms on one axis of time",
    ),
}
