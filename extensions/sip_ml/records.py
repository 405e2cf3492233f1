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
    """Decisions of the controller to divide light while a job ran. Of each decision: ``number``, ``t``,
    the bytes ``left_bytes`` for which it was made, whether any switch ``changed``, the seconds ``read_s``,
    ``decide_s``, ``hold_s``, ``write_s`` and ``dark_s``, the ``problem``, null if there was none, and
    ``lightpaths``, the number of lightpaths from each GPU to each peer at that time."""

    job: str
    decisions: list[Mapping[str, Any]]


class LightGiven(Record, event="light_given"):
    """Pairs of GPUs for which each division of light was made, in a simulation that follows every rank.

    ``pairs``: source and destination of each. ``divisions``, the first of which is made for all that the job
    sends: for each, ``t``, the time at which it was lit, ``left_bytes`` of each pair when it was decided, and
    ``lightpaths`` of each pair.
    """

    job: str
    pairs: list[tuple[str, str]]
    divisions: list[Mapping[str, Any]]


class LightTurns(Record, event="light_turns"):
    """Light that followed the phases of a job. Of each of ``turns``, which is a phase in an iteration:
    ``iteration``, ``phase``, the times at which its circuits began to be ``set`` and were ``lit``, seconds
    of the lab's clock, and whether any circuit was ``moved`` for it."""

    job: str
    turns: list[Mapping[str, Any]]
