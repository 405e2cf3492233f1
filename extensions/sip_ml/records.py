"""Records of light that is divided, or set for phases, while a job runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlight.experiments.record.events import Record


class Divisions(Record, event="divisions"):
    """Number of times that light was divided again while a job ran, and the seconds for which bytes waited
    in the dark because of that."""

    job: str
    decisions: int
    dark_s: float


class LightDecisions(Record, event="light_decisions"):
    """Decisions of the controller to divide light while a job ran. Each has its ``number``, its time ``t``, the
    unsent bytes ``left_bytes``, whether any switch ``changed``, and the ``problem``, null if there was none.
    ``read_s``, ``decide_s``, ``hold_s``, ``write_s`` and ``dark_s`` are seconds. ``lightpaths`` is the number of
    lightpaths from each GPU to each peer at that time."""

    job: str
    decisions: list[Mapping[str, Any]]


class LightGiven(Record, event="light_given"):
    """Pairs of GPUs for which each division of light was made, in a simulation that follows every rank.

    ``pairs``: source and destination of each. ``divisions`` lists the divisions; the first is made for the whole
    demand of the job. Each has ``t``, the time at which it was lit, ``left_bytes`` of each pair when it was
    decided, and ``lightpaths`` of each pair.
    """

    job: str
    pairs: list[tuple[str, str]]
    divisions: list[Mapping[str, Any]]


class LightTurns(Record, event="light_turns"):
    """Light that followed the phases of a job. Each of ``turns`` is a phase in an iteration, and has its
    ``iteration`` and ``phase``. Its circuits began to be ``set`` and were ``lit`` at these seconds of the lab's
    clock. ``moved``: whether any circuit was moved for it."""

    job: str
    turns: list[Mapping[str, Any]]
