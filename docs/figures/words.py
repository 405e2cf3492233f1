"""How figures are written on the pages."""

from __future__ import annotations

from ringlight.experiments.analysis.published import saved


def seconds(value: float) -> str:
    """Three digits, in the unit that fits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if abs(value) * factor >= 1:
            return f"{value * factor:#.3g} {unit}".replace(". ", " ")
    return f"{value * 1e6:#.3g} µs".replace(". ", " ")


def milliseconds(value: float) -> str:
    return f"{1000 * value:,.0f}" if value >= 0.1 else f"{1000 * value:.3g}"


def number(value: float) -> str:
    return f"{value:,.4g}"


def ratio(value: float) -> str:
    return f"{value:.3f}"


def percent(value: float) -> str:
    return f"{value:.1f} %"


def apart(ours: float, measured: float) -> str:
    """Deviation of a simulated figure from the measured one."""
    return f"{100 * (ours / measured - 1):+.1f} %".replace("-", "−")


def reduced(before: float, after: float) -> str:
    return percent(saved(after / before))


def rise(before: float, after: float) -> str:
    return f"{100 * before:.0f} → {100 * after:.0f} %, {after / before:.2f} ×"


def truth(value: bool) -> str:
    return "yes" if value else "no"


def limit(value: float | str) -> str:
    """Text of the size up to which one is faster than the other."""
    return {"always": "every size"}.get(value, value) if isinstance(value, str) else f"{value / 1e6:.4g} MB"


def saving(ratio_of_both: float) -> str:
    """What a ratio below 1 saves, as exactly as papers give it."""
    return f"{saved(ratio_of_both):.2f} %".replace("-", "−")
