"""Blocks of the ODDL experiments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from docs.figures.disaggregation import AGREEMENT, compared
from docs.figures.parts import Block, Cell, Picture, Table, measured, of, simulated
from docs.figures.words import number, ratio, seconds, truth

TRAIN = "job train"
_ARMS = ("prototype", "oddl")


def _shown(
    title: str, show: Callable[[Any], str], metric: str, subject: str = TRAIN, paper: Cell = ""
) -> list[Cell]:
    """``subject``: with {} for the fabric, which is called as the arm is."""
    return [title, *(of(show, measured(arm, metric, subject.format(arm))) for arm in _ARMS), paper]


def _broken_even(gradient: str) -> list[Cell]:
    metrics = ("break_even", "break_even_predicted", "break_even_predicted_with_compute")
    at = {"training.gradient": gradient}
    return [gradient, *(of(seconds, simulated("short", metric, TRAIN, at, real=True)) for metric in metrics)]


BLOCKS: dict[str, Block] = {
    "picture-oddl": Picture(
        "oddl_16",
        "simulated",
        "grid-oddl",
        "oddl-grid.png",
        "Lit wavelengths of a 4 × 4 grid in each step of one all-reduce",
    ),
    "oddl-4": Table(
        "oddl_4",
        " | one WSS | grid of WSSs | paper",
        [
            _shown(
                "training time over training time on one packet switch",
                ratio,
                "jct_ratio",
                paper=of(ratio, measured("prototype", "jct_ratio", TRAIN, published=True)),
            ),
            _shown("training time over training time on a perfect network", ratio, "jct_over_model"),
            _shown(
                "final parameters equal to those of the packet switch, bit by bit",
                truth,
                "parameters_equal",
                paper="accuracy equal",
            ),
            _shown("flow set-up, request to light, median", seconds, "setup_p50", "fabric {}"),
            _shown("flow set-up, 99 %", seconds, "setup_p99", "fabric {}"),
            _shown("control messages per flow", number, "control_messages_per_flow", "fabric {}"),
            _shown("collisions", number, "collisions", "fabric {}"),
            _shown("payload lost, bytes", number, "payload_lost", "run"),
            [
                "median iteration of a run in which the controller is killed, over one without",
                of(
                    lambda killed, usual: ratio(killed / usual),
                    *(measured(arm, "iteration", TRAIN) for arm in ("controller-killed", "prototype")),
                ),
            ],
            [
                "agent killed, 5 % of control messages lost, doubled, reordered: parameters identical",
                of(truth, measured("agent-killed", "parameters_identical", TRAIN)),
            ],
        ],
    ),
    "agreement-oddl-4": Table(
        "oddl_4",
        AGREEMENT,
        [
            compared("one packet switch", "ideal", "train"),
            compared("one WSS", "prototype", "train"),
            compared("2 × 2 grid of WSSs", "oddl", "train"),
        ],
    ),
    "oddl-sweep": Table(
        "oddl_sweep",
        "gradient | set-up of a flow, simulated | model | model, with the paper's compute",
        [_broken_even(gradient) for gradient in ("25 MB", "102.228 MB", "553.43 MB")],
    ),
}
