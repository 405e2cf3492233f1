"""All-reduces that repeat are looked up, not simulated again.

Jobs that share links, directly or through others, are a group. Events in one group do not affect others. A
group is quiet while all of its ranks compute. From then on until it is quiet again, an *episode*, everything
follows from when each rank comes to its all-reduce: the same moments, counted from the first, give the same
ends. So an episode that was simulated is kept. If a later one begins the same, its ends are set immediately,
without flows. Groups that are equal except for the names of their links keep episodes together.

A change of the network, and a job that begins next to others or fails, interrupts an episode that was looked
up: then it is simulated from its begin up to that moment, and continues like any other. So the result is the
same as without, except for rounding: moments are equal within a few units in the last place of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ringlight.testbed.simulation.engine import Engine, do_nothing

#: Moments are equal if they differ by at most so many units in the last place of the time.
ALIKE = 16
#: Episodes that are kept of groups that are equal; transfers of the largest that is compared with others.
MOST_KEPT, MOST_COMPARED = 16, 20_000


class Loop(Protocol):
    """A training loop in progress, all of whose transfers go through the engine."""

    def links_used(self) -> frozenset[int]:
        """Return the engine's links that its transfers pass now."""

    def looks(self, number: dict[int, int]) -> object:
        """Return what it is like to its group, links numbered as they come; ``number`` grows."""

    def transfers(self) -> int:
        """Return how many one all-reduce has."""

    def upcoming_s(self) -> Iterable[tuple[int, float]]:
        """Yield the ranks that compute, and when each will have, seconds."""

    def reduce(self, rank: int) -> None:
        """Begin the all-reduce of a rank."""

    def reduced(self, rank: int) -> None:
        """End the all-reduce of a rank."""

    def simulate_on(
        self, twin: Engine, begun_s: dict[int, float], over: list[tuple[Loop, int]]
    ) -> None:
        """Have the all-reduce of these ranks simulated by another engine; ``over`` gets those that end."""

    def back_on(self, engine: Engine) -> None:
        """Go on with the engine that everybody else has."""


#: A rank of a loop.
Rank = tuple[Loop, int]
#: The same by the loop's place in its group.
Row = tuple[int, int]


@dataclass(frozen=True)
class Episode:
    """Seconds since an episode's begin: when rows came to their all-reduce, when they ended it, and its
    length."""

    begins_s: dict[Row, float]
    ends_s: dict[Row, float]
    length_s: float


@dataclass(eq=False)
class LoopGroup:
    """Loops that share links. ``begun`` and ``ended``: times in the present episode. ``open``: ranks that
    have begun and not ended. ``looked_up``: whether the episode's ends are set. ``number`` counts episodes
    that were, and interruptions. ``single``: each rank has begun once, and nothing else happened.
    """

    loops: list[Loop]
    begun: dict[Rank, float] = field(default_factory=dict)
    ended: dict[Rank, float] = field(default_factory=dict)
    open: int = 0
    looked_up: bool = False
    number: int = 0
    single: bool = True
    kept: list[Episode] | None = None


class Groups:
    """Groups of loops on an engine that nothing else uses."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._group: dict[Loop, LoopGroup] = {}
        self._user: dict[int, LoopGroup] = {}
        self._kept: dict[object, list[Episode]] = {}
        engine.changing = self.interrupt

    def join(self, loop: Loop) -> None:
        """Take a loop in that begins."""
        used = loop.links_used()
        beside = list(
            dict.fromkeys(self._user[link] for link in used if link in self._user)
        )
        for other in beside:
            self._interrupt(other)
        group = LoopGroup(
            [*(member for other in beside for member in other.loops), loop]
        )
        for other in beside:
            group.begun |= other.begun
            group.ended |= other.ended
            group.open += other.open
        group.single = not group.open
        for member in group.loops:
            self._group[member] = group
            for link in used if member is loop else member.links_used():
                self._user[link] = group

    def leave(self, loop: Loop) -> None:
        """Let a loop go that is over, or fails now."""
        group = self._group.get(loop)
        if group is None:
            return
        unfinished = [
            rank for rank in group.begun if rank[0] is loop and rank not in group.ended
        ]
        if unfinished or any(True for _ in loop.upcoming_s()):
            # It does no more what it did in the episode that was looked up.
            self._interrupt(group)
            group.open -= len(unfinished)
            for rank in unfinished:
                del group.begun[rank]
        if not group.open:
            # The remaining groups are equal to others now.
            group.loops.remove(loop)
            group.kept = None
            del self._group[loop]

    def interrupt(self) -> None:
        """Simulate what was looked up, and keep no episode, as something is about to change."""
        for group in dict.fromkeys(self._group.values()):
            self._interrupt(group)
            group.kept = None
        self._kept.clear()

    def rearrange(self) -> None:
        """Group all loops again, as they have other ways now."""
        self.interrupt()
        before, self._group, self._user = self._group, {}, {}
        for loop, old in before.items():
            self.join(loop)
            group = self._group[loop]
            mine = [
                rank for rank in old.begun if rank[0] is loop and rank not in old.ended
            ]
            group.begun |= {rank: old.begun[rank] for rank in mine}
            group.open += len(mine)
            group.single = not group.open

    def end_all(self) -> None:
        """Simulate what was looked up, and look nothing up any more."""
        self.interrupt()
        self._engine.changing = do_nothing

    def begin(self, loop: Loop, rank: int) -> None:
        """Begin the all-reduce of a rank, or look it up."""
        group, now_s = self._group[loop], self._engine.now_s
        if not group.open:
            self._start(group, now_s)
        if (loop, rank) in group.begun:
            group.single = False
            group.ended.pop((loop, rank), None)
        group.open += 1
        group.begun[loop, rank] = now_s
        if not group.looked_up:
            loop.reduce(rank)

    def end(self, loop: Loop, rank: int) -> None:
        """Note that a rank has ended its all-reduce."""
        group = self._group[loop]
        group.open -= 1
        group.ended[loop, rank] = self._engine.now_s
        if not group.open:
            self._keep(group)

    # Episodes.

    def _start(self, group: LoopGroup, now_s: float) -> None:
        group.begun, group.ended, group.single, group.looked_up = {}, {}, True, False
        if group.kept is None:
            group.kept = self._kept.setdefault(self._looks(group.loops), [])
        if not group.kept:
            return
        upcoming_s = {
            (place, rank): at_s - now_s
            for place, loop in enumerate(group.loops)
            for rank, at_s in loop.upcoming_s()
        }
        tolerance_s = ALIKE * math.ulp(now_s)
        episode = next(
            (
                candidate
                for candidate in group.kept
                if _alike(candidate, upcoming_s, tolerance_s)
            ),
            None,
        )
        if episode is None:
            return
        group.looked_up = True
        group.number += 1
        for (place, rank), end_s in episode.ends_s.items():
            self._engine.at(
                now_s + end_s, self._over, group, group.number, group.loops[place], rank
            )

    def _over(self, group: LoopGroup, number: int, loop: Loop, rank: int) -> None:
        """End a rank's all-reduce as before, unless the episode was interrupted."""
        if group.number == number:
            loop.reduced(rank)

    def _keep(self, group: LoopGroup) -> None:
        if group.looked_up or not group.single or group.kept is None:
            group.looked_up = False
            return
        place = {loop: number for number, loop in enumerate(group.loops)}
        begin_s = min(group.begun.values())

        def since_s(times_s: dict[Rank, float]) -> dict[Row, float]:
            return {
                (place[loop], rank): at_s - begin_s
                for (loop, rank), at_s in times_s.items()
            }

        ends_s = since_s(group.ended)
        del group.kept[: len(group.kept) + 1 - MOST_KEPT]
        group.kept.append(Episode(since_s(group.begun), ends_s, max(ends_s.values())))

    def _interrupt(self, group: LoopGroup) -> None:
        """Simulate a looked-up episode from its begin up to now."""
        if group.open:
            group.single = False
        if not group.looked_up:
            return
        group.looked_up = False
        group.number += 1
        twin = self._engine.twin(min(group.begun.values()))
        over: list[Rank] = []
        begun_s: dict[Loop, dict[int, float]] = {}
        for (loop, rank), at_s in group.begun.items():
            begun_s.setdefault(loop, {})[rank] = at_s
        for loop, ranks in begun_s.items():
            loop.simulate_on(twin, ranks, over)
        twin.run(self._engine.now_s)
        self._engine.adopt(twin)
        for loop in begun_s:
            loop.back_on(self._engine)
        for loop, rank in over:
            if (loop, rank) not in group.ended:
                self._engine.at(self._engine.now_s, loop.reduced, rank)

    def _looks(self, loops: Sequence[Loop]) -> object:
        """Return a group's state without the names of its links, equal to no other one for a large group."""
        if sum(loop.transfers() for loop in loops) > MOST_COMPARED:
            return object()
        number: dict[int, int] = {}
        looks = tuple(loop.looks(number) for loop in loops)
        return looks, tuple(map(self._engine.capacity, number))


def _alike(episode: Episode, upcoming_s: dict[Row, float], tolerance_s: float) -> bool:
    """Return whether rows come to their all-reduces as in an episode, and others only once it is over."""
    begins_s = episode.begins_s
    if not begins_s.keys() <= upcoming_s.keys():
        return False
    return all(
        abs(at_s - begins_s[row]) <= tolerance_s
        if row in begins_s
        else at_s > episode.length_s + tolerance_s
        for row, at_s in upcoming_s.items()
    )
