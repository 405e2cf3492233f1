"""Compute the traffic of a job's workers from their settings. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ringlight.controller.errors import InvalidError
from ringlight.controller.jobs.job import linktest_targets
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.steps import Step, Steps, frozen


def steps_of_job(settings: Mapping[str, Any], ranks: int, where: object) -> Steps:
    """Return the steps of a training's collective, or the only step of a link test, named for error messages.

    ``settings``: the workers' settings (``workload``, ``collective``, ``linktest``). ``where``: the plane.
    Raises InvalidError for a collective that does not exist or fit.
    """
    if settings.get("workload", "train") == "train":
        collective = settings.get("collective", "ring")
        try:
            return replace(
                steps_named(collective, ranks), name=f"collective {collective}"
            )
        except ValueError as error:
            raise InvalidError(
                f"collective {collective} on {where}: {error}"
            ) from error
    targets = linktest_targets(settings, ranks)
    pairs = [
        (rank, target) for rank, target in enumerate(targets) if target is not None
    ]
    sources, destinations = (frozen([pair[k] for pair in pairs]) for k in (0, 1))
    zeros = frozen(np.zeros(len(pairs)))
    step = Step(sources, destinations, zeros, frozen(np.ones(len(pairs))), "replace")
    return Steps("linktest", ranks, 1, 1, lambda: iter([step]))
