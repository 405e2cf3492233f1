"""Blocks of traces that are replayed on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from docs.figures.parts import Block, Cell, Table, of, simulated

RUN = "run"
_SWEPT = {
    "random": "at random",
    "first": "first fit",
    "packed": "packed",
    "light": "light moves",
    "ideal": "no link short",
}
_LOADS, _SHARING = (0.4, 0.6, 0.8, 1.2), ("always", "duty", "interleaved")
_OVER, _SHARE, _DARK = (f"parameters.{name}.value" for name in ("oversubscription", "share", "dark"))
_POINTS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("oversubscription 2", {_OVER: 2}),
    ("oversubscription 4", {_OVER: 4}),
    ("oversubscription 8", {_OVER: 8}),
    ("share 0.1", {_SHARE: 0.1}),
    ("share 0.5", {_SHARE: 0.5}),
)


def share(value: float) -> str:
    return f"{100 * value:.0f} %"


def hours(value: float) -> str:
    return f"{value / 3600:.2f} h"


def _swept(load: float, sharing: str) -> list[Cell]:
    at = {"jobs.trace.load": load, "jobs.trace.sharing": sharing}

    def shown(took_s: float, goodput: float) -> str:
        return f"{hours(took_s)}, {share(goodput)}"

    metrics = ("completion_mean", "goodput")
    cells = (of(shown, *(simulated(arm, name, RUN, at) for name in metrics)) for arm in _SWEPT)
    return [f"{load:g}", sharing, *cells]


def _trace(trace: str, what: str, at: Mapping[str, Any]) -> list[Cell]:
    arms = (trace, f"{trace}-light", f"{trace}-ideal")
    load = of(share, simulated(trace, "offered_load", RUN, at))
    return [
        trace.title(),
        what,
        load,
        *(of(hours, simulated(arm, "completion_mean", RUN, at)) for arm in arms),
    ]


def _dark(trace: str, dark: str) -> list[Cell]:
    found = simulated(f"{trace}-light", "completion_mean", RUN, {_DARK: dark})
    return [trace.title(), f"dark {dark}", "", "", of(hours, found)]


_CORES = {
    "packets": "packet switches",
    "still": "circuits that stay",
    "divided": "circuits divided at arrival",
    "daily": "circuits divided every day",
    "ideal": "never short",
}


def _core(arm: str) -> list[Cell]:
    def one(metric: str, shown: Callable[[float], str]) -> Cell:
        return of(shown, simulated(arm, metric, RUN, {}))

    return [
        _CORES[arm], one("completion_mean", hours), one("goodput", share),
        one("network_slowdown", "{:.2f}".format), one("fibres_moved_total", "{:,.0f}".format),
    ]  # fmt: skip


_SPARES = {
    "wait": "wait for the repair",
    "restart": "restart elsewhere",
    "switch": "a spare server of the same switch",
    "pod": "of the same pod",
    "anywhere": "from anywhere",
    "cube": "a spare cube of 64 GPUs, which fail whole",
}


def _spared(arm: str) -> list[Cell]:
    cells = []
    for gpus in (256, 1024):
        at = {"jobs.trace.generate.sizes": {gpus: 1}}
        cells += [of(share, simulated(arm, metric, RUN, at)) for metric in ("goodput", "stalled")]
    return [_SPARES[arm], *cells]


BLOCKS: dict[str, Block] = {
    "cluster-lit-core": Table(
        "cluster_lit_core",
        "core | mean completion | goodput | slowed by the network | circuits moved",
        [_core(arm) for arm in _CORES],
    ),
    "cluster-load": Table(
        "cluster_sweep",
        f"load | jobs send | {' | '.join(_SWEPT.values())}",
        [_swept(load, sharing) for load in _LOADS for sharing in _SHARING],
    ),
    "cluster-spares": Table(
        "cluster_spares",
        "when a server fails | goodput, jobs of 256 GPUs | they wait | goodput, jobs of 1,024 | they wait",
        [_spared(arm) for arm in _SPARES],
    ),
    "cluster-traces": Table(
        "cluster_two_traces",
        "trace | at | load after warm-up | packed | light moves | no link short",
        [
            *(_trace(trace, what, at) for trace in ("crux", "philly") for what, at in _POINTS),
            *(_dark(trace, dark) for trace in ("crux", "philly") for dark in ("60 s", "600 s")),
        ],
    ),
}
