"""The conductor's core: random orders of opens, closes, broken connections, deaths and dark WSSs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.wrht.conductor import (
    Closed,
    Conductor,
    ConductorLit,
    Configure,
    Effect,
    Failed,
    Lost,
    Pair,
)
from ringlight.extensions.wrht.schedule import wrht

AB, BA = ("a", "b"), ("b", "a")
RING = (frozenset({AB, BA}), frozenset({AB}))


def test_a_step_begins_when_the_one_before_is_closed_and_somebody_asks() -> None:
    one = Conductor(RING)
    assert one.open(1, "a", AB, 0) == [Configure(0, 0)]
    assert one.configured() == [ConductorLit(1)]
    assert one.open(2, "b", BA, 0) == [ConductorLit(2)]
    assert one.close(1) == [Closed(1)]
    assert one.open(3, "a", AB, 1) == [], "b's transfer of step 0 is still open"
    assert one.close(2) == [Closed(2), Configure(1, 1)]
    assert one.configured() == [ConductorLit(3)]
    assert one.close(3) == [Closed(3)]
    assert one.open(4, "b", BA, 2) == [Configure(0, 2)], (
        "the next iteration begins with step 2"
    )
    assert one.step == 2


def test_a_step_waits_for_a_sender_that_has_not_asked_yet() -> None:
    one = Conductor(RING)
    assert one.open(1, "a", AB, 0) + one.configured() == [
        Configure(0, 0),
        ConductorLit(1),
    ]
    assert one.close(1) + one.open(2, "a", AB, 1) == [Closed(1)]
    assert one.open(3, "b", BA, 0) == [ConductorLit(3)]
    assert one.close(3) == [Closed(3), Configure(1, 1)]


def test_where_there_is_one_step_it_need_not_be_said() -> None:
    one = Conductor([frozenset({AB, BA})])
    assert one.open(1, "a", AB) + one.configured() == [Configure(0, 0), ConductorLit(1)]
    assert one.open(2, "b", BA) == [ConductorLit(2)]
    assert one.close(1) + one.open(3, "a", AB) == [Closed(1), ConductorLit(3)], (
        "as often as it is asked for"
    )
    assert one.close(2) + one.close(3) + one.open(4, "a", AB, 1) == [
        Closed(2),
        Closed(3),
        ConductorLit(4),
    ]
    assert one.open(5, "b", BA) == [ConductorLit(5)], "the step that is being played"
    assert one.darkened("dark") == [Lost(4, "dark"), Lost(5, "dark")]
    assert one.open(6, "a", AB) == [Configure(0, 1)]
    assert one.unconfigured("away") == [Failed(6, "away")]
    heir = Conductor([frozenset({AB, BA})], resumed=True)
    assert heir.open(1, "a", AB) + heir.settle() == [Configure(0, 0)]


def test_where_every_step_sets_its_light_anew_one_that_stands_is_set_too() -> None:
    one = Conductor([frozenset({AB, BA})], each_step=True)
    assert one.open(1, "a", AB, 0) + one.configured() == [
        Configure(0, 0),
        ConductorLit(1),
    ]
    assert one.close(1) + one.open(2, "a", AB, 1) == [Closed(1)]
    assert one.open(3, "b", BA, 0) == [ConductorLit(3)], "of the same step"
    assert one.close(3) == [Closed(3), Configure(0, 1)]
    assert one.configured() == [ConductorLit(2)]


def test_what_is_not_in_the_schedule_is_refused() -> None:
    one = Conductor(RING)
    assert one.open(1, "a", ("a", "c"), 0) == [
        Failed(1, "a sends nothing to c in step 0")
    ]
    assert one.open(2, "b", BA, 3) == [Failed(2, "b sends nothing to a in step 3")]
    assert one.open(3, "a", AB, -1) == [Failed(3, "a sends nothing to b in step -1")]
    assert one.open(4, "a", AB) == [Failed(4, "there are 2 steps: say the step")]
    assert one.flows() == []


def test_light_that_goes_is_lost_and_set_again() -> None:
    one = Conductor(RING)
    assert one.open(1, "a", AB, 0) + one.configured() == [
        Configure(0, 0),
        ConductorLit(1),
    ]
    assert one.darkened("w0 was off") == [Lost(1, "w0 was off")]
    assert one.open(2, "a", AB, 0) == [Configure(0, 0)]
    assert one.open(3, "b", BA, 0) == []
    assert one.unconfigured("w0 is away") == [
        Failed(2, "w0 is away"),
        Failed(3, "w0 is away"),
    ]
    assert one.open(4, "a", AB, 0) + one.configured() == [
        Configure(0, 0),
        ConductorLit(4),
    ]


def test_after_a_broken_connection_a_step_does_not_wait_for_a_close_that_was_lost() -> (
    None
):
    one = Conductor(RING)
    assert one.open(1, "a", AB, 0) + one.configured() == [
        Configure(0, 0),
        ConductorLit(1),
    ]
    assert one.open(2, "b", BA, 0) == [ConductorLit(2)]
    # b closes its flow after the connection broke, so nobody hears of it.
    assert one.gone("b") == []
    assert one.close(1) + one.open(3, "a", AB, 1) == [Closed(1), Configure(1, 1)]
    assert one.configured() == [ConductorLit(3)]
    # b had not closed it after all, and comes again: it is served before anything new.
    assert one.open(4, "b", BA, 0) == []
    assert one.close(3) == [Closed(3), Configure(0, 0)]
    assert one.configured() == [ConductorLit(4)]


def test_who_takes_over_waits_until_all_could_ask_and_goes_on_with_the_least_step() -> (
    None
):
    one = Conductor(RING, resumed=True)
    assert one.open(1, "a", AB, 7) == []
    assert one.open(2, "b", BA, 6) == []
    assert one.settle() == [Configure(0, 6)]
    assert one.step == 6
    assert one.configured() == [ConductorLit(2)]
    assert one.close(2) == [Closed(2), Configure(1, 7)], (
        "a's transfer of step 6 was over before"
    )


def test_who_takes_over_may_find_ranks_one_iteration_apart() -> None:
    one = Conductor(RING, resumed=True)
    assert one.open(1, "b", BA, 0) + one.open(2, "a", AB, 3) + one.settle() == [
        Configure(0, 0)
    ]
    assert one.configured() + one.close(1) == [
        ConductorLit(1),
        Closed(1),
        Configure(1, 3),
    ]
    # a's transfer of step 2 was over before; b's was not, and comes late.
    assert one.open(3, "b", BA, 2) + one.configured() == [Configure(0, 2)]
    assert one.configured() + one.close(3) == [
        ConductorLit(3),
        Closed(3),
        Configure(1, 3),
    ]


@dataclass
class Sender:
    """One rank: its steps by peer, each closed before the next to that peer is opened."""

    name: str
    queues: dict[str, list[int]]
    life: int = 0
    open: dict[str, int] = field(default_factory=dict)
    lit: set[str] = field(default_factory=set)


class World:
    """Senders, the conductor and the WSSs. Raises AssertionError as soon as something is lit wrongly."""

    def __init__(
        self,
        steps: list[frozenset[Pair]],
        iterations: int,
        seed: int,
        each_step: bool = False,
    ) -> None:
        self.steps = steps
        self.each_step = each_step
        self.random = random.Random(seed)
        self.conductor = Conductor(self.steps, each_step=each_step)
        #: The step for which the setting that stands was made, and for which there was one.
        self.set_for: int | None = None
        self.set_up: list[int] = []
        self.settling = False
        self.strict = True
        self.wanted: int | None = None
        self.setting: int | None = None
        self.by_flow: dict[int, tuple[Sender, str, int]] = {}
        self.numbers = 0
        self.closed: set[tuple[str, str, int]] = set()
        self.all = [
            (a, b, i * len(steps) + k)
            for i in range(iterations)
            for k, s in enumerate(steps)
            for a, b in s
        ]
        names = sorted({name for a, b, _ in self.all for name in (a, b)})
        self.senders = [
            Sender(
                name,
                {b: [s for a, c, s in self.all if (a, c) == (name, b)] for b in names},
            )
            for name in names
        ]

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Configure):
                assert not any(sender.lit for sender in self.senders), (
                    "light is taken from a flow"
                )
                assert self.wanted is None
                assert effect.setting == effect.step % len(self.steps)
                self.wanted, self.setting = effect.setting, None
                self.set_for = effect.step
                self.set_up.append(effect.step)
            elif isinstance(effect, ConductorLit):
                sender, peer, step = self.by_flow[effect.flow]  # type: ignore[index]
                assert self.setting == step % len(self.steps), (
                    "lit in the wrong setting"
                )
                assert not self.each_step or self.set_for == step, (
                    "lit in the light of another step"
                )
                lit = {self.by_flow[n][2] for n in self.by_flow if self.is_lit(n)}
                assert lit <= {step}, "two steps at once"
                if self.strict:
                    earlier = {t for t in self.all if t[2] < step}
                    assert earlier <= self.closed, "a step before is not over"
                assert peer in sender.open
                assert peer not in sender.lit
                sender.lit.add(peer)
            elif isinstance(effect, Closed):
                del self.by_flow[effect.flow]  # type: ignore[arg-type]
            else:
                sender, peer, _ = self.by_flow.pop(effect.flow)  # type: ignore[call-overload]
                sender.lit.discard(peer)
                del sender.open[peer]

    def is_lit(self, number: int) -> bool:
        sender, peer, _ = self.by_flow[number]
        return sender.open.get(peer) == number and peer in sender.lit

    def queues(self) -> list[list[int]]:
        return [queue for sender in self.senders for queue in sender.queues.values()]

    def moves(self) -> list[tuple[Any, ...]]:
        """Everything that can go on now."""
        found: list[tuple[Any, ...]] = []
        # An all-reduce needs everybody: no rank is more than one iteration ahead of another.
        behind = min((step for queue in self.queues() for step in queue), default=0)
        limit = (behind // len(self.steps) + 2) * len(self.steps)
        for sender in self.senders:
            found += [
                ("open", sender, peer)
                for peer, queue in sender.queues.items()
                if queue and queue[0] < limit and peer not in sender.open
            ]
            found += [("close", sender, peer) for peer in sender.lit]
        if self.wanted is not None:
            found.append(("configured",))
        if self.settling:
            found.append(("settle",))
        return found

    def do(self, move: tuple[Any, ...]) -> None:
        kind, *rest = move
        if kind == "open":
            sender, peer = rest
            self.numbers += 1
            step = sender.queues[peer][0]
            sender.open[peer] = self.numbers
            self.by_flow[self.numbers] = (sender, peer, step)
            client = (sender.name, sender.life)
            self.carry_out(
                self.conductor.open(self.numbers, client, (sender.name, peer), step)
            )
        elif kind == "close":
            sender, peer = rest
            sender.lit.discard(peer)
            self.closed.add((sender.name, peer, sender.queues[peer].pop(0)))
            self.carry_out(self.conductor.close(sender.open.pop(peer)))
        elif kind == "configured":
            self.setting, self.wanted = self.wanted, None
            self.carry_out(self.conductor.configured())
        elif kind == "settle":
            self.settling = False
            self.carry_out(self.conductor.settle())

    # Trouble

    def hang_up(self, sender: Sender) -> list[int]:
        """A sender's connection breaks; some flows of it were over, only nobody hears of that."""
        for peer in list(sender.lit):
            if self.random.random() < 0.5:
                self.closed.add((sender.name, peer, sender.queues[peer].pop(0)))
        mine = list(sender.open.values())
        sender.open.clear()
        sender.lit.clear()
        for number in mine:
            del self.by_flow[number]
        return mine

    def trouble(self) -> None:
        self.strict = False
        kind = self.random.choice(("hang up", "death", "dark", "unconfigured"))
        if kind == "hang up":
            sender = self.random.choice(self.senders)
            self.hang_up(sender)
            client = (sender.name, sender.life)
            sender.life += 1
            self.carry_out(self.conductor.gone(client))
        elif kind == "death":
            for sender in self.senders:
                self.hang_up(sender)
            self.conductor = Conductor(
                self.steps, resumed=True, each_step=self.each_step
            )
            self.settling, self.wanted, self.setting = True, None, None
        elif kind == "dark":
            if self.wanted is None:
                self.setting = None
            self.carry_out(self.conductor.darkened("dark"))
        elif self.wanted is not None:
            self.wanted = None
            self.carry_out(self.conductor.unconfigured("away"))

    def play(self, troubles: int) -> None:
        for _ in range(200_000):
            if troubles and self.random.random() < 0.05:
                troubles -= 1
                self.trouble()
            moves = self.moves()
            if not moves:
                break
            self.do(self.random.choice(moves))
        assert self.closed == set(self.all), (
            f"stuck, {len(self.all) - len(self.closed)} transfers are missing"
        )
        if self.strict:
            assert self.conductor.flows() == []
            if self.each_step:
                assert self.set_up == sorted({step for *_, step in self.all}), (
                    "once for each step"
                )


NAMES = st.sampled_from("abcde")
PAIRS = st.frozensets(
    st.tuples(NAMES, NAMES).filter(lambda pair: pair[0] != pair[1]), max_size=5
)


@settings(max_examples=200)
@given(
    st.lists(PAIRS, min_size=1, max_size=5).filter(any),
    st.integers(1, 3),
    st.integers(0, 1 << 30),
    st.booleans(),
)
def test_any_order_of_opens_and_closes_plays_every_step_in_turn(
    steps: list[frozenset[Pair]], iterations: int, seed: int, each_step: bool
) -> None:
    World(steps, iterations, seed, each_step).play(0)


@settings(max_examples=300)
@given(
    st.lists(PAIRS, min_size=1, max_size=5).filter(any),
    st.integers(1, 3),
    st.integers(0, 1 << 30),
    st.integers(1, 6),
    st.booleans(),
)
def test_nothing_gets_stuck_whatever_breaks(
    steps: list[frozenset[Pair]],
    iterations: int,
    seed: int,
    troubles: int,
    each_step: bool,
) -> None:
    World(steps, iterations, seed, each_step).play(troubles)


@pytest.mark.parametrize("troubles", [0, 5])
def test_a_wrht_schedule_is_played(troubles: int) -> None:
    steps = [
        frozenset(
            (f"r{a}", f"r{b}")
            for a, b in zip(s.sources.tolist(), s.destinations.tolist(), strict=True)
        )
        for s in wrht(25, 2)
    ]
    for seed in range(5):
        World(steps, 3, seed).play(troubles)
