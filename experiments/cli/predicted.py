"""Tell for ``check`` how long jobs take, as predicted at each point of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringlight.experiments.analysis.prediction import START_UP_S
from ringlight.experiments.runner.predicted_points import Point
from ringlight.fabric.units import format_time


def time_range(points: Sequence[Point], job: str, how: str) -> str:
    """Return a job's time as text, from the least to the greatest of all points that are known in the way
    ``how``.

    The range covers all moments at which later jobs may begin. Return "" if no point is known in this way.
    """
    known = [p for p in points if p.get("how") == how and job in p["jct_s"]]
    times = [
        time
        for p in known
        for time in (p["jct_s"][job], *p.get("phases", {}).get(job, ()))
    ]
    if not times:
        return ""
    least, most = rounded(min(times)), rounded(max(times))
    return least if least == most else f"{least.removesuffix(' s')} to {most}"


def rounded(time_s: float) -> str:
    """Return seconds as text, with two or three digits: what a prediction knows of them."""
    if time_s >= 0.1:
        return f"{time_s:.{2 if time_s < 10 else 1}f} s"
    return format_time(float(f"{time_s:.3g}"))


def taken(arms: Mapping[str, Sequence[Point]]) -> list[str]:
    """Return a line that explains why simulated times are ranges, if they depend on when later jobs begin;
    else [].
    """
    names = [
        arm
        for arm, points in arms.items()
        if any("phases" in point for point in points)
    ]
    if not names:
        return []
    decides = "when in an iteration of others a later job begins decides how long jobs take: simulated"
    ready = f"ready at once, and {START_UP_S:g} s (as containers were measured) and parts of an iteration later"
    return [f"{', '.join(names)}: {decides} {ready}"]


def left_out(arms: Mapping[str, Sequence[Point]]) -> list[str]:
    """Return a line for each reason why points are not predicted, with the arms and the number of their
    points.
    """
    arms_of: dict[str, list[str]] = {}
    for arm, points in arms.items():
        for why in dict.fromkeys(
            point["why_not"] for point in points if "why_not" in point
        ):
            count = sum(point.get("why_not") == why for point in points)
            arms_of.setdefault(why, []).append(
                arm if len(points) == 1 else f"{arm} ({count} of {len(points)})"
            )
    return [
        f"not predicted: {', '.join(names)}: {why}" for why, names in arms_of.items()
    ]
