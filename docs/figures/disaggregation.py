"""Blocks of the disaggregation experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from docs.figures.parts import Block, Cell, Figure, Of, Picture, Table, measured, of, simulated
from docs.figures.words import apart, percent, reduced, rise, seconds, truth

RED = "job red"


def _pair(case: str) -> tuple[str, str]:
    """The arms of a case before and after it is regrouped."""
    return (f"{case}-fragmented" if case in ("a", "b") else case), f"{case}-regrouped"


def _modelled(case: str, at: Mapping[str, Any] | None = None) -> Of:
    """The model's reduction of a case's completion time."""
    return of(reduced, *(simulated(arm, "jct_predicted", RED, at or {}) for arm in _pair(case)))


def _simulated(case: str, at: Mapping[str, Any] | None = None) -> Of:
    return of(percent, simulated(f"{case}-regrouped", "jct_reduction", RED, at or {}))


def _both(case: str, at: Mapping[str, Any] | None = None) -> list[Cell]:
    return [_modelled(case, at), _simulated(case, at)]


def _fitted(before: float, after: float) -> str:
    return f"{before:.0f} s → {after:.0f} s, {reduced(before, after)}, **fitted**"


def _demo(case: str, title: str) -> list[Cell]:
    return [
        title,
        *(of(lambda value: f"{value:.1f} s", measured(arm, "jct", RED)) for arm in _pair(case)),
        of(lambda value: f"**{percent(value)}**", measured(f"{case}-regrouped", "jct_reduction", RED)),
        _simulated(case),
        _modelled(case),
        of(_fitted, *(measured(arm, "jct", RED, published=True) for arm in _pair(case))),
    ]


def _used(case: str, metric: str, figure: Callable[..., Figure] = simulated) -> Of:
    return of(rise, *(figure(arm, metric, RED) for arm in _pair(case)))


def _agrees(before: float, after: float, does: bool) -> str:
    return f"{rise(before, after)}, {'agrees' if does else 'does not'}"


def _defined(definition: str, busy: str) -> list[Cell]:
    metric = f"gpu_utilisation.{definition}"
    cells: list[Cell] = [f"`{definition}`", busy]
    for case in "ab":
        regrouped = partial(simulated, f"{case}-regrouped")
        agrees = regrouped(f"{metric}_ratio_agrees", RED)
        if definition == "window":
            ends = (regrouped(f"{metric}_{word}", RED) for word in ("baseline", "ratio"))
            cells.append(of(lambda before, gain, does: _agrees(before, before * gain, does), *ends, agrees))
        else:
            cells.append(of(_agrees, *(simulated(arm, metric, RED) for arm in _pair(case)), agrees))
    return cells


_DEFINITIONS = {
    "compute": "computing",
    "full_rate": "computing, and the collective's bytes at the port's full rate",
    "overlap": "computing, hidden behind the collective as far as it goes",
    "moving": "computing, and the collective while bytes move",
    "collective": "computing and the whole collective",
}


def _varied(title: str, said: str, path: str, value: Any) -> list[Cell]:
    """The reductions of both cases at another value of a parameter."""
    at = {f"parameters.{path}.value": value}
    return [title, said, *_both("a", at), *_both("b", at)]


def _oversubscribed(rate: float) -> list[Cell]:
    """``rate``: Gbit/s of the link between the switches; one GPU's has 40."""
    said = f"{40 / rate:.3g}{', as in the file' if rate == 12.903 else ''} ({rate:g} Gbit/s)"
    return _varied("oversubscription", said, "uplink_rate", f"{rate:g} Gbit/s")


def _batched(batch: int) -> list[Cell]:
    return _varied("batch", f"{batch}{', as in the file' if batch == 28 else ''}", "batch", batch)


AGREEMENT = " | iteration, emulated | simulated | difference | all-reduce, emulated | simulated | difference"


def compared(title: str, arm: str, job: str) -> list[Cell]:
    """Iteration and all-reduce of a job: emulated, simulated, how far apart."""
    cells: list[Cell] = [title]
    for metric in ("iteration", "allreduce"):
        emulated, virtual = (figure(arm, metric, f"job {job}") for figure in (measured, simulated))
        cells += [of(seconds, emulated), of(seconds, virtual), of(apart, virtual, emulated)]
    return cells


BLOCKS: dict[str, Block] = {
    "picture-disaggregation": Picture(
        "disaggregation",
        "measured",
        "throughput-a",
        "figure3.png",
        "Throughput and GPU utilisation of case (a), fragmented and regrouped, as in figure 3 of the paper",
    ),
    "picture-topology": Picture(
        "disaggregation",
        "measured",
        "topology-1",
        "topology.png",
        "Topology before and after, with the light paths",
    ),
    "disaggregation": Table(
        "disaggregation",
        "case | fragmented | regrouped | reduction | simulated | all-send model | paper",
        [_demo("a", "(a) jobs of 4 and 2 GPUs"), _demo("b", "(b) jobs of 3 and 3 GPUs")],
    ),
    "disaggregation-utilisation": Table(
        "disaggregation",
        "GPU utilisation, computing over the time of the job | ours | paper",
        [
            ["(a)", _used("a", "gpu_utilisation", measured), "three times"],
            ["(b)", _used("b", "gpu_utilisation", measured), "no significant improvement"],
        ],
    ),
    "disaggregation-live": Table(
        "disaggregation",
        "regrouped while both jobs train | ",
        [
            [title, of(show, measured("live", metric, subject))]
            for title, show, metric, subject in (
                ("light off, from the command to the new light", seconds, "light_off", "event 1"),
                (
                    "longest time without a byte of an all-reduce under way (0: none was)",
                    seconds,
                    "tcp_stall",
                    "event 1",
                ),
                ("the same without moving light", seconds, "tcp_stall_usual", "event 1"),
                ("TCP connections kept", truth, "connections_unchanged", RED),
                ("parameters those of one process, bit by bit", truth, "parameters_identical", RED),
            )
        ],
    ),
    "agreement-disaggregation": Table(
        "disaggregation",
        AGREEMENT,
        [
            compared(f"{case}, {how}, {job}", f"{case}-{how}", job)
            for case in "ab"
            for how in ("fragmented", "regrouped")
            for job in ("red", "blue")
        ],
    ),
    "sensitivity": Table(
        "disaggregation_sensitivity",
        "changed | to | (a) all-send model | (a) simulated | (b) all-send model | (b) simulated",
        [
            ["contiguous ring", "red g0 g1 g3 g4", *_both("contiguous")],
            ["three GPUs of red on one switch", "red g0 g1 g2 g3; blue g4 g5", *_both("three-one")],
            [
                "another placement of three and three",
                "red g0 g3 g4; blue g1 g5 g2",
                "",
                "",
                *_both("other-three"),
            ],
            *map(_oversubscribed, (40, 20, 16, 13.3333, 12.903, 11.4286, 10, 8)),
            *map(_batched, (14, 21, 28, 35, 42, 56)),
        ],
    ),
    "utilisation": Table(
        "disaggregation",
        "definition | counted as busy | (a) | (b)",
        [
            ["", "published", "2.5 to 3.5 ×", "0.8 to 1.25 ×"],
            *(_defined(*found) for found in _DEFINITIONS.items()),
            _defined("window", "computing, over the time of the longer run"),
        ],
    ),
    "utilisation-unequal": Table(
        "disaggregation_sensitivity",
        "definition, Titan V three times as fast | (a)",
        [[f"`{name}`", _used("unequal", f"gpu_utilisation.{name}")] for name in _DEFINITIONS],
    ),
}
