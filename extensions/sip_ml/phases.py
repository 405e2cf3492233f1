"""Light that follows the phases of a job: who needs which circuits when, and when they may be set.

A *phase* is a stretch of a job's iteration in which some of its ranks send over the same circuits. A rank's
phases come one after another, and each has all light of its ranks. A *turn* is a phase in one iteration. Its
circuits are set once all its ranks have ended the turn before, and everybody in those turns has: then nothing
is on its way on what is taken. Everything here is pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, eq=False)
class Phase:
    """``ranks`` send over the same circuits; ``demand``: bytes of each pair (source, destination) in it."""

    ranks: tuple[int, ...]
    demand: Mapping[tuple[int, int], float]


@dataclass(frozen=True, eq=False)
class PhasePlan:
    """The phases of one iteration, in an order in which each rank goes through its own.

    ``phase_of`` [ranks]: of each operation of a rank's program the number of its phase, -1 if it does not
    communicate.
    """

    phases: tuple[Phase, ...]
    phase_of: tuple[tuple[int, ...], ...]

    @property
    def of_rank(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the phases that each rank goes through, in order."""
        numbers: list[list[int]] = [[] for _ in self.phase_of]
        for number, phase in enumerate(self.phases):
            for rank in phase.ranks:
                numbers[rank].append(number)
        return tuple(map(tuple, numbers))


class Turn(NamedTuple):
    """A phase in an iteration."""

    iteration: int
    phase: int


class Turns:
    """Says which turns may have light, as ranks tell that they have ended theirs.

    No deadlock: of all turns that are not over, the first in the order of iterations and phases has no rank
    that is still in an earlier one.
    """

    def __init__(self, plan: PhasePlan, iterations: int) -> None:
        self._plan, self._iterations = plan, iterations
        self._of_rank = plan.of_rank
        #: How many turns each rank has ended.
        self._ended = [0] * len(self._of_rank)
        #: Of each turn that has begun to be one: ranks that have not ended it, that are not free for it.
        self._left: dict[Turn, int] = {}
        self._waits: dict[Turn, int] = {}

    def begin(self) -> list[Turn]:
        """Return the turns that may have light before anything was sent."""
        ready = []
        for rank in range(len(self._of_rank)):
            ready += self._free(rank, 0)
        return ready

    def present(self, rank: int) -> Turn | None:
        """Return the turn that a rank has not ended; None when the rank has ended all."""
        return self._turn(rank, self._ended[rank])

    def ended(self, rank: int) -> tuple[Turn | None, list[Turn]]:
        """Record that a rank has ended its present turn.

        Return the turn, if it is over for all ranks now, else None; and the turns that may have light since.
        Raises ValueError for a rank that has ended all.
        """
        turn = self.present(rank)
        if turn is None:
            raise ValueError(
                f"rank {rank} has ended all of its {self._ended[rank]} turns"
            )
        self._ended[rank] += 1
        members = self._plan.phases[turn.phase].ranks
        left = self._left.get(turn, len(members)) - 1
        if left:
            self._left[turn] = left
            return None, []
        self._left.pop(turn, None)
        ready: list[Turn] = []
        for other in members:
            ready += self._free(other, self._ended[other])
        return turn, ready

    def _free(self, rank: int, number: int) -> list[Turn]:
        """Record that a rank is free for its ``number``-th turn.

        Return the turn, if all its ranks are free for it, else [].
        """
        turn = self._turn(rank, number)
        if turn is None:
            return []
        waits = self._waits.get(turn, len(self._plan.phases[turn.phase].ranks)) - 1
        if waits:
            self._waits[turn] = waits
            return []
        self._waits.pop(turn, None)
        return [turn]

    def _turn(self, rank: int, number: int) -> Turn | None:
        own = self._of_rank[rank]
        if not own or number >= len(own) * self._iterations:
            return None
        iteration, index = divmod(number, len(own))
        return Turn(iteration, own[index])


class Progress:
    """One rank's way through its turns, as its operations end. ``phase_of``: as of the plan, the rank's."""

    def __init__(self, phase_of: Sequence[int]) -> None:
        self._phase_of = phase_of
        self._of_phase = Counter(phase for phase in phase_of if phase >= 0)
        self._order = sorted(self._of_phase)
        self._left = self._of_phase.copy()
        self._at = 0
        #: How many turns it has ended.
        self.ended = 0

    def end(self, operation: int) -> int:
        """Record that an operation has ended. Return how many turns have ended with it.

        All operations of an iteration end before any of the next.
        """
        phase = self._phase_of[operation]
        if phase < 0:
            return 0
        self._left[phase] -= 1
        before = self.ended
        while self._at < len(self._order) and not self._left[self._order[self._at]]:
            self._at += 1
            self.ended += 1
        if self._at == len(self._order):
            self._at, self._left = 0, self._of_phase.copy()
        return self.ended - before
