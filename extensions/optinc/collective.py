"""The collective that averagers do: it is no schedule of who sends what to whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringlight.fabric.algorithms import Algorithm


def _plane(fabric: Any, ranks: Sequence[str]) -> Any:
    # Workers know the collective, and no plane.
    from ringlight.extensions.optinc.averager_plane import averagers

    return averagers(fabric, ranks)


def _worker() -> Any:
    # Only workers have it.
    from ringlight.extensions.optinc.averaged_gradients import AveragerReducer

    return AveragerReducer()


OPTINC = Algorithm(None, frozenset(), _plane, worker=_worker)
