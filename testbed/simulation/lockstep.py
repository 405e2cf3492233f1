"""Ranks in lock-step: classes of ranks that do the same with the same kind of others.

Ranks of a class run one program. For each communicator of it their groups are of one size and have as many
ranks of each class; for each peer theirs are of one class. So what one of them does all do, and they are
simulated as one: the slowest of them decides when all continue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple

import numpy as np

from ringlight.fabric.steps import IntArray
from ringlight.workloads.graph import Kind, Program, Workload


class Meeting(NamedTuple):
    """Members of a communicator slot: the classes, and the groups' ranks [groups, size] and numbers."""

    slot: int
    classes: tuple[int, ...]
    groups: IntArray
    numbers: tuple[int, ...]


class Classes:
    """The classes of a workload's ranks. ``of`` [ranks]: class of each; ``members``: ranks of each class."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._slots = [
            (_slots(p, Kind.COLLECTIVE), _slots(p, Kind.SEND, Kind.RECEIVE))
            for p in workload.programs
        ]
        self._group_ranks = [group.tolist() for group in workload.groups]
        self._communicators = workload.communicators.tolist()
        self._peers: list[list[int]] = workload.peers.tolist()
        program_of = workload.program_of.tolist()
        self._ways = [
            self._way(rank, self._slots[p][1]) for rank, p in enumerate(program_of)
        ]
        of, classes = program_of, 0
        while len(set(of)) > classes:
            classes = len(set(of))
            of = _numbered(self._signatures(program_of, of))
        self.of: IntArray = np.array(of, dtype=np.int64)
        self.members = [np.flatnonzero(self.of == c) for c in range(len(set(of)))]

    def __len__(self) -> int:
        return len(self.members)

    def program(self, number: int) -> int:
        """Return the index of the program that the ranks of class ``number`` run."""
        return int(self._workload.program_of[self.members[number][0]])

    def meetings(self, number: int) -> dict[int, Meeting]:
        """Return the meeting of a class's ranks on each communicator slot of its program."""
        meetings = {}
        for slot in self._slots[self.program(number)][0]:
            first = self._group_ranks[
                self._communicators[int(self.members[number][0])][slot]
            ]
            classes = tuple(sorted({int(self.of[rank]) for rank in first}))
            numbers = sorted(
                {
                    self._communicators[rank][slot]
                    for rank in self.members[number].tolist()
                }
            )
            groups = np.stack([self._workload.groups[group] for group in numbers])
            meetings[slot] = Meeting(slot, classes, groups, tuple(numbers))
        return meetings

    def slot_to(self, source: int, destination: int) -> int:
        """Return the first of a rank's peer slots that leads to another rank. It is the same for all ranks of
        a class.
        """
        slots = self._slots[int(self._workload.program_of[source])][1]
        return next(slot for slot in slots if self._peers[source][slot] == destination)

    def _way(self, rank: int, slots: Iterable[int]) -> tuple[Hashable, ...]:
        """Return, for each slot, the first of the rank's slots that leads to the same peer, and the peer's
        slots that lead back.
        """
        peers: list[int] = self._peers[rank]
        first: dict[int, int] = {}
        ways = []
        for slot in slots:
            peer = peers[slot]
            theirs = self._slots[int(self._workload.program_of[peer])][1]
            back = tuple(s for s in theirs if self._peers[peer][s] == rank)
            ways.append((first.setdefault(peer, slot), back))
        return tuple(ways)

    def _signatures(self, program_of: list[int], of: list[int]) -> list[Hashable]:
        within = [
            tuple(sorted(Counter(of[rank] for rank in group).items()))
            for group in self._group_ranks
        ]
        # Long tuples are compared once.
        within_number = _numbered(within)
        return [
            (
                of[rank],
                tuple(
                    within_number[self._communicators[rank][slot]]
                    for slot in self._slots[program][0]
                ),
                tuple(of[self._peers[rank][slot]] for slot in self._slots[program][1]),
                self._ways[rank],
            )
            for rank, program in enumerate(program_of)
        ]


def _slots(program: Program, *kinds: Kind) -> list[int]:
    slots: list[int] = np.unique(program.slot[np.isin(program.kind, kinds)]).tolist()
    return slots


def _numbered(values: Iterable[Hashable]) -> list[int]:
    """Return equal numbers for equal values, from 0 in the order in which they come."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(value, len(known)) for value in values]
