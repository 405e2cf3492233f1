"""Blocks of the WRHT experiments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docs.figures.parts import (
    Block,
    Cell,
    Figure,
    MeanRatio,
    Picture,
    StepCount,
    Table,
    Verdict,
    measured,
    of,
    simulated,
)
from docs.figures.paths import all_reduces
from docs.figures.words import apart, limit, milliseconds, number, saving, seconds, truth

TRAIN, ALL = "job train", "job all"
_GRADIENT, _CHARGE = "training.gradient", "fabrics.light.rings.n.reconfigure"
_MODELS = ("102.228128 MB", "553.430176 MB")
_OURS = {"wrht": "WRHT", "wrht-exchange": "WRHT, exchange at the top"}
_OTHERS = {
    "wrht-striped": "WRHT, idle wavelengths striped",
    "bidirectional-ring": "Bidirectional ring",
    "bidirectional-ring-striped": "Bidirectional ring, striped",
    "bidirectional-hierarchical-ring": "Bidirectional hierarchical ring",
    "bidirectional-hierarchical-ring-striped": "Bidirectional hierarchical ring, striped",
    "ring": "Ring",
    "ring-striped": "Ring, striped",
    "hierarchical-ring": "Hierarchical ring",
    "hierarchical-ring-striped": "Hierarchical ring, striped",
    "binary-tree": "Binary tree",
    "binary-tree-striped": "Binary tree, striped",
}


def _nine(title: str, arm: str, fabric: str = "") -> list[Cell]:
    """``fabric``: that of an arm whose light changes between steps."""
    metrics = ("set_ups_per_allreduce", "setup_p50")
    light = (measured(arm, metric, f"fabric {fabric}") for metric in metrics)
    iterations = (figure(arm, "iteration", TRAIN) for figure in (simulated, measured))
    return [
        title,
        of(str, StepCount("measured", arm, TRAIN)),
        of(lambda times, each: f"{times} times, {seconds(each)} each", *light) if fabric else "",
        of(seconds, measured(arm, "allreduce", TRAIN)),
        of(seconds, simulated(arm, "allreduce", TRAIN)),
        of(apart, *iterations),
        of(truth, measured(arm, "parameters_identical", TRAIN)),
        of(number, measured(arm, "payload_lost", "run")),
    ]


def _steps(arm: str) -> Cell:
    return of(number, simulated(arm, "steps", ALL, {_GRADIENT: _MODELS[0]}))


def _charged(arm: str, metric: str, at: Mapping[str, Any]) -> list[Figure]:
    """Figures with the set-up charged in each step, and only where light changes."""
    return [simulated(arm, metric, ALL, {**at, _CHARGE: way}) for way in ("each-step", "changed-only")]


def _limits(each: float | str, changed: float | str) -> str:
    return " / ".join(dict.fromkeys([limit(each), limit(changed)]))


def _optical(arm: str, title: str, faster: Cell) -> list[Cell]:
    def times(each: float, changed: float) -> str:
        return f"{milliseconds(each)} / {milliseconds(changed)} ms"

    taken = (of(times, *_charged(arm, "allreduce", {_GRADIENT: size})) for size in _MODELS)
    return [title, _steps(arm), *taken, faster]


def _electrical(arm: str, title: str, faster: Cell) -> list[Cell]:
    def time(value: float) -> str:
        return f"{milliseconds(value)} ms"

    taken = (of(time, simulated(arm, "allreduce", ALL, {_GRADIENT: size})) for size in _MODELS)
    return [title, _steps(arm), *taken, faster]


def _percentage(other: str, metric: str = "allreduce") -> list[Cell]:
    mean = MeanRatio("simulated", "wrht", metric, other)
    against = f"{other.replace('-', ' ')}, {'time' if metric == 'allreduce' else 'number of steps'}"
    theirs, ours = of(lambda m: saving(m.ratio), mean), of(lambda m: saving(m.ours[0][0]), mean)
    return [theirs, against, ours]


BLOCKS: dict[str, Block] = {
    "picture-wrht-9": Picture(
        "wrht_9",
        "simulated",
        "ring-wrht",
        "wrht-light.png",
        "Light of the four steps of WRHT among nine nodes",
    ),
    "picture-wrht": Picture(
        "wrht",
        "simulated",
        "fastest",
        "wrht-fastest.png",
        "The fastest all-reduce by gradient and set-up time",
    ),
    "wrht-9": Table(
        "wrht_9",
        "nine nodes | steps | set-ups in one | all-reduce, emulated | simulated | iteration, difference | "
        "same parameters | bytes lost",
        [
            _nine("WRHT, one wavelength", "wrht", "one"),
            _nine("ring, one wavelength", "ring"),
            _nine("binary tree, one wavelength", "tree", "one"),
            _nine("hierarchical ring, three wavelengths", "hring", "three"),
            _nine("ring on one packet switch", "eps"),
        ],
    ),
    "wrht-9-each-step": Table(
        "wrht_9_each_step",
        "lightpaths set again before each step | all-reduce",
        all_reduces(
            {
                "wrht": "WRHT",
                "bring": "bidirectional ring",
                "bhring": "bidirectional hierarchical ring",
                "kept": "bidirectional ring, lightpaths kept",
            }
        ),
    ),
    "wrht": Table(
        "wrht",
        " | steps | ResNet-50, 102 MB | VGG16, 553 MB | WRHT is faster up to",
        [
            *(_optical(arm, title, "") for arm, title in _OURS.items()),
            *(
                _optical(arm, title, of(_limits, *_charged("wrht", f"faster_up_to.{arm}", {})))
                for arm, title in _OTHERS.items()
            ),
            _electrical(
                "electrical-ring",
                "electrical ring, 2 µs per step",
                of(limit, simulated("wrht", "faster_up_to.electrical-ring", ALL)),
            ),
            _electrical(
                "electrical-recursive-doubling",
                "electrical recursive doubling, trunks 1:1",
                of(
                    lambda value: f"from {limit(value)} on",
                    simulated("wrht", "faster_from.electrical-recursive-doubling", ALL),
                ),
            ),
        ],
    ),
    "wrht-verdict": Verdict("wrht", "simulated"),
    "wrht-percentages": Table(
        "wrht",
        "paper | assumed baseline | closest of ours",
        [
            _percentage("binary-tree", "steps"),
            _percentage("ring"),
            _percentage("hierarchical-ring"),
            _percentage("electrical-ring"),
            _percentage("electrical-recursive-doubling"),
        ],
    ),
}
