"""Look up the share of the rate that TCP reaches if flows fill links both ways, as measured on emulated
links.

Max-min sharing takes nothing of a link but headers. TCP takes more: acknowledgements go the way of other
flows' payload. Of the flows of an exchange, which share two full links each, some are ahead of others, so
that links stand empty at its end. The shares are what was left of the rest, the median of queues of 6, 20 and
60 frames, once connections were warm (``python -m benchmarks full_load``, its ``warm``; AMD EPYC, two
processors, 2026-11-26).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ringlight.fabric.steps import IntArray

#: Flows that each node sends and receives at once, and the share of payload's rate that is left of it.
MEASURED = {1: 0.9839, 2: 0.985, 4: 0.9786, 8: 0.9789, 15: 0.9725}


def left(flows: int) -> float:
    """Return the share of the rate that ``flows`` at each end of a link leave to payload.

    The share is 1 if no flows go both ways. Between the measured numbers the share is interpolated by their
    logarithm, and beyond them it is held.
    """
    if flows < 1:
        return 1.0
    return float(
        np.interp(np.log(flows), np.log(list(MEASURED)), list(MEASURED.values()))
    )


def flows_both_ways(steps: Iterable[tuple[IntArray, IntArray]]) -> int:
    """Return the most flows that share both their sender's and their receiver's link in a step.

    Only steps count in which some rank sends and receives; 0 if there is none. ``steps``: sources and
    destinations of each.
    """
    most = 0
    for sources, destinations in steps:
        if not len(sources) or not np.intersect1d(sources, destinations).size:
            continue
        sent, received = np.bincount(sources), np.bincount(destinations)
        most = max(most, int(np.minimum(sent[sources], received[destinations]).max()))
    return most
