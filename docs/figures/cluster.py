"""Blocks of traces that are replayed on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from docs.figures.parts import Block, Cell, Middle, Table, of, simulated

RUN = "run"
#: Placements without light, of which the best is light's bar, and with it.
_STILL = ("random", "first", "packed", "best", "aligned")
_SWEPT = {
    "random": "at random",
    "first": "first fit",
    "packed": "packed",
    "best": "best fit",
    "aligned": "whole switches first",
    "light": "circuits moved",
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
Middled = tuple[float, float, float]


def share(value: float) -> str:
    return f"{100 * value:.0f} %"


def hours(found: Middled) -> str:
    """Seconds: the median and where nine of ten are."""
    median, low, high = (f"{one / 3600:.3g}" for one in found)
    return f"{median} h ({low} to {high})"


def factor(found: Middled) -> str:
    median, low, high = (f"{one:.2f}" for one in found)
    return f"{median} ({low} to {high})"


def _middle(arm: str, metric: str, at: Mapping[str, Any], *over: str) -> Middle:
    return Middle("simulated", arm, metric, at, over)


def _swept(load: float, sharing: str) -> list[Cell]:
    at = {"jobs.trace.load": load, "jobs.trace.sharing": sharing}

    def shown(took_s: Middled, goodput: Middled) -> str:
        return f"{hours(took_s)}, {share(goodput[0])}"

    metrics = ("completion_mean", "goodput")
    cells = (of(shown, *(_middle(arm, name, at) for name in metrics)) for arm in _SWEPT)
    return [f"{load:g}", sharing, *cells]


def _worth(load: float, sharing: str) -> list[Cell]:
    """Times with light over those without, on the same trace."""
    at = {"jobs.trace.load": load, "jobs.trace.sharing": sharing}
    over = (("packed",), ("best",), _STILL, ("ideal",))
    return [f"{load:g}", sharing, *(of(factor, _middle("light", "completion_mean", at, *o)) for o in over)]


def _trace(trace: str, what: str, at: Mapping[str, Any]) -> list[Cell]:
    still, light = (trace, f"{trace}-best"), f"{trace}-light"
    load = of(lambda found: share(found[0]), _middle(trace, "offered_load", at))
    arms = (*still, light, f"{trace}-ideal")
    times = (of(hours, _middle(arm, "completion_mean", at)) for arm in arms)
    return [trace.title(), what, load, *times, of(factor, _middle(light, "completion_mean", at, *still))]


def _dark(trace: str, dark: str) -> list[Cell]:
    found = _middle(f"{trace}-light", "completion_mean", {_DARK: dark})
    return [trace.title(), f"dark {dark}", "", "", "", of(hours, found)]


_CORES = {
    "packets": "packet switches",
    "still": "circuits that stay",
    "divided": "circuits divided at arrival",
    "daily": "circuits divided every day",
    "ideal": "never short",
}


def _core(arm: str) -> list[Cell]:
    def one(metric: str, shown: Callable[[Middled], str]) -> Cell:
        return of(shown, _middle(arm, metric, {}))

    return [
        _CORES[arm], one("completion_mean", hours), one("goodput", lambda found: share(found[0])),
        one("network_slowdown", factor), one("fibres_moved_total", lambda found: f"{found[0]:,.0f}"),
    ]  # fmt: skip


_SPARES = {
    "wait": "wait for the repair",
    "restart": "restart elsewhere",
    "switch": "a spare server of the same switch",
    "pod": "a spare server of the same pod",
    "anywhere": "a spare server from anywhere",
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
    "cluster-worth": Table(
        "cluster_sweep",
        "load | jobs send | over packed | over best fit | over the best without moves | over no link short",
        [_worth(load, sharing) for load in _LOADS for sharing in _SHARING],
    ),
    "cluster-spares": Table(
        "cluster_spares",
        "when a server fails | goodput, jobs of 256 GPUs | they wait | goodput, jobs of 1,024 | they wait",
        [_spared(arm) for arm in _SPARES],
    ),
    "cluster-traces": Table(
        "cluster_two_traces",
        "trace | at | load after warm-up | packed | best fit | circuits moved | no link short | "
        "moved over the better of both",
        [
            *(_trace(trace, what, at) for trace in ("crux", "philly") for what, at in _POINTS),
            *(_dark(trace, dark) for trace in ("crux", "philly") for dark in ("60 s", "600 s")),
        ],
    ),
}
