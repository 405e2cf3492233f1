"""Name and write figures for people."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ringlight.experiments.analysis.metrics import metrics
from ringlight.experiments.analysis.rows import Row, Value
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.report.page import NOTHING, mark, tag, text
from ringlight.fabric.units import format_rate, format_size

#: Metrics that tables show, as their heads have it.
_TITLES = {
    "jct": "job completion time",
    "iteration_ideal": "iteration, by the model",
    "port_sent_over_payload": "bytes sent over payload",
    "unit_mzis": "interferometers",
    "inputs_wrong": "inputs answered wrongly",
    "iteration": "iteration",
    "allreduce": "all-reduce",
    "exchange": "all-reduce alone",
    "gpu_utilisation": "GPU utilisation",
    "busbw": "bus bandwidth",
    "algbw": "algorithm bandwidth",
    "setup_p50": "set-up, median",
    "setup_p99": "set-up, 99 %",
    "tcp_stall": "TCP stall",
    "tcp_stall_usual": "usual TCP stall",
    "wire_dark": "dark on the wire",
    "reconfiguration": "reconfiguration latency",
    "dark_declared": "declared dark time",
}
#: Metrics whose unit 1 is a share of something.
_SHARES = ("gpu_utilisation", "accuracy", "fragmentation", "inputs_wrong")
YES_NO = {True: "yes", False: mark("bad", "no"), None: NOTHING}
#: Least spread of repeats that are not equal, relative to their mean.
_ROUNDING = 1e-12
HARD_SPACE = "\u00a0"


def called(metric: str) -> str:
    """Return a metric's name in plain words: ``all-reduce`` for ``allreduce``."""
    return _TITLES.get(metric, metric.replace("_", " ").replace(".", ": "))


def meaning(metric: str) -> str:
    """Return the meaning of a metric, as text in the middle of a sentence; HTML."""
    words = metrics()[metric.removesuffix("_best")].help
    best = ", the least that was searched" if metric.endswith("_best") else ""
    words = re.sub(r"`(\w+)`", lambda name: called(name[1]), words)
    return text(
        (words[:1].lower() + words[1:] if words[1:2].islower() else words) + best
    )


def seconds(value: float | None) -> str:
    """Return seconds in words, such as ``31.04 s`` or ``504.6 ms``; a dash for None."""
    if value is None:
        return NOTHING
    if abs(value) >= 100:
        return f"{value:,.1f}".removesuffix(".0") + f"{HARD_SPACE}s"
    # Not "1000.0 ms".
    if abs(value) >= 0.99995:
        return f"{value:.2f}{HARD_SPACE}s"
    if abs(value) >= 0.01 or value == 0:
        return f"{1e3 * value:.1f}{HARD_SPACE}ms"
    if abs(value) >= 1e-4:
        return f"{1e3 * value:.3f}{HARD_SPACE}ms"
    return f"{1e6 * value:.3g}{HARD_SPACE}µs"


def percent(share: float | None, digits: int = 1) -> str:
    return NOTHING if share is None else f"{100 * share:.{digits}f}{HARD_SPACE}%"


def count(value: float | None) -> str:
    return (
        NOTHING
        if value is None
        else f"{value:,.0f}"
        if float(value).is_integer()
        else f"{value:,.2f}"
    )


def amount(value: Value, unit: str, metric: str = "") -> str:
    """Return a value with its unit, as HTML."""
    if value is None or isinstance(value, bool):
        return YES_NO[value]
    if not is_number(value):
        return text(value)
    if unit == "s":
        return seconds(value)
    if unit == "bit/s":
        return format_rate(float(f"{value:.4g}"))
    if unit == "bytes":
        return format_size(value)
    if unit == "%":
        return f"{value:.1f}{HARD_SPACE}%"
    if unit == "count":
        return count(value)
    if metric == "inputs_wrong":
        return f"{100 * value:.3g}{HARD_SPACE}%"
    return percent(value) if is_share(metric) else f"{value:.4g}"


def is_share(metric: str) -> bool:
    """Return whether a metric of unit 1 is a share of something, which is written in per cent."""
    return metric.startswith(_SHARES) and "_ratio" not in metric


def figure(row: Row | None) -> str:
    """Return a row's value, with half the width of its 95 % interval if the row has one; a dash for None."""
    if row is None:
        return NOTHING
    shown = amount(row.value, row.unit, row.metric)
    if row.spread is None:
        return shown
    # Equal repeats differ by the error of their mean at most.
    size = abs(row.value) if is_number(row.value) else 0.0
    spread = row.spread if row.spread > _ROUNDING * size else 0.0
    return f"{shown} ± {amount(spread, row.unit, row.metric)}"


def upper_first(words: str) -> str:
    return words[:1].upper() + words[1:]


def quoted(title: str) -> str:
    """Return a title in quotes, for the middle of a sentence."""
    return f"“{title}”"


def apart(title: str, base: str) -> tuple[str, str]:
    """Return two titles without their common beginning, up to a comma; the last part always stays."""
    first, other = title.split(", "), base.split(", ")
    while len(first) > 1 and len(other) > 1 and first[0] == other[0]:
        first, other = first[1:], other[1:]
    return ", ".join(first), ", ".join(other)


def worth_tag(row: Row | None) -> str:
    """Return a tag with what agreement with a published figure is worth; empty for None and free figures."""
    return "" if row is None or row.standing == "free" else tag(row.standing)


def as_text(value: object) -> str:
    """Return a swept value as a person writes it; of a mapping its entries."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {entry}" for key, entry in value.items()) or "none"
    return str(value)
