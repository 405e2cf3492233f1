"""Light divided among pairs of GPUs: lightpaths of each pair, and what switches pass for them.

GPUs are numbers here: places in ``fabric.gpus``, and so in ``nodes`` of what is divided.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringlight.extensions.sip_ml.divided.planes import Paths
from ringlight.extensions.wrht.ring import CLOCKWISE, WdmRing
from ringlight.extensions.wrht.wdm import cross_connects
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.steps import IntArray, Step, frozen, frozen_bool
from ringlight.fabric.topology import Fabric


@dataclass(frozen=True, eq=False)
class Division:
    """``counts`` [n, n]: lightpaths from source (row) to destination (column); ``paths``: which these are."""

    counts: IntArray
    paths: Paths


def setting_of(fabric: Fabric, paths: Paths) -> dict[str, frozenset[CrossConnect]]:
    """Return the cross-connects of every switch of a fabric for these lightpaths, and no others.

    Raises ValueError for a fabric whose light is not divided, and for lightpaths of two pairs that a ring
    cannot carry at the same time.
    """
    divided = fabric.parts.get("divided")
    if divided is None:
        raise ValueError("the light of this fabric is not divided")
    if isinstance(divided, WdmRing):
        return cross_connects(divided, fabric, _step(paths))
    passed: dict[str, frozenset[CrossConnect]] = divided.passes(
        fabric.optical_switches, paths
    )
    return passed


def _step(paths: Paths) -> Step:
    """Return a step with a transfer for each lightpath."""
    rows = [
        (*pair, path.wavelength or 0, path.port)
        for pair, own in paths.items()
        for path in own
    ]
    sources, destinations, wavelengths, ports = (
        np.array(rows, dtype=np.int64).reshape(-1, 4).T
    )
    nothing = frozen(np.zeros(len(rows), dtype=np.int64))
    return Step(
        frozen(sources),
        frozen(destinations),
        nothing,
        nothing,
        "replace",
        frozen(wavelengths),
        frozen_bool(ports == CLOCKWISE),
    )
