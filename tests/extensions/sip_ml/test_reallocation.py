"""Light that follows demand: bytes are as late as its dark times make them, by rank and in classes alike."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pytest

from ringlight.extensions.sip_ml.simulation.reallocation import Decide, Reallocation
from ringlight.fabric.steps import Step
from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.networks import Routes
from ringlight.testbed.simulation.phases import StepCost
from ringlight.testbed.simulation.workload import Execution, Fidelity
from ringlight.workloads.graph import Collective, Workload
from ringlight.workloads.graph_writer import Book, Writer

RATE_BPS = 8e6


class Pairs:
    """One link from each GPU to each other one."""

    def __init__(
        self, gpus: int, rate_bps: float = RATE_BPS, latency_s: float = 0.0
    ) -> None:
        self.gpus, self.latency_s = gpus, latency_s
        self.capacity_bps: FloatArray = np.full(gpus * gpus, rate_bps)

    def key(self, link: int) -> Hashable:
        return divmod(link, self.gpus)

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        at = np.array([int(gpu) for gpu in ranks])
        links = at[step.sources] * self.gpus + at[step.destinations]
        return Routes(
            np.arange(len(links) + 1), links, np.full(len(links), self.latency_s)
        )


def one_message(size: int, computing_s: float = 0.0) -> Workload:
    book = Book()
    sender, receiver = Writer(book), Writer(book)
    first = sender.compute("c", seconds=computing_s)
    sender.send("m", size, 0, after=[first])
    receiver.receive("m", size, 0)
    return book.workload(
        "message", [sender.done(), receiver.done()], [0, 1], [[], []], [[1], [0]]
    )


def rings(ranks: int, size: int, groups: int = 1) -> Workload:
    book = Book()
    writer = Writer(book)
    writer.collective("r", Collective("all-reduce", "ring"), size, 0)
    for group in range(groups):
        book.group(range(group * ranks, (group + 1) * ranks))
    of = [rank // ranks for rank in range(groups * ranks)]
    return book.workload(
        "rings",
        [writer.done()],
        [0] * len(of),
        [[group] for group in of],
        [[]] * len(of),
    )


def run(
    workload: Workload,
    interval: tuple[float, float],
    decide: Decide,
    how: Fidelity = "exact",
    first: FloatArray | None = None,
    *,
    latency_s: float = 0.0,
    cost: StepCost | None = None,
    decision_s: float = 0.0,
) -> tuple[Reallocation, Execution, Engine]:
    network = Pairs(workload.ranks, latency_s=latency_s)
    engine = Engine()
    gpus = [str(rank) for rank in range(workload.ranks)]
    execution = Execution(
        engine,
        network,
        gpus,
        workload,
        fidelity=how,
        cost=cost or StepCost(),
        standing=False,
    )
    given = network.capacity_bps if first is None else first
    made = Reallocation(
        engine, execution, given, *interval, decide, decision_s=decision_s
    )
    made.begin()
    execution.begin()
    engine.run(until_s=60)
    return made, execution, engine


@pytest.mark.parametrize("how", ["exact", "classes"])
def test_a_message_is_as_late_as_the_dark_times_before_its_end(how: Fidelity) -> None:
    """1 s of sending at full rate, in intervals of 0.3 s: dark at 0.3, 0.7 and 1.1 s, over at 1.3 s."""
    made, execution, _ = run(
        one_message(1_000_000), (0.3, 0.1), lambda left: np.full(4, RATE_BPS), how
    )
    assert execution.over
    assert execution.result().end_s.max() == pytest.approx(1.3)
    assert (made.decisions, made.dark_s) == (3, pytest.approx(0.3))


@pytest.mark.parametrize("how", ["exact", "classes"])
def test_what_is_decided_from_is_what_has_yet_to_pass(how: Fidelity) -> None:
    seen: list[float] = []

    def decide(left: FloatArray) -> FloatArray:
        seen.append(float(left[1]))
        assert left.sum() == left[1]
        return np.full(4, RATE_BPS / 2)

    _, execution, _ = run(one_message(1_000_000), (0.25, 0.05), decide, how)
    # A quarter at full rate, then an eighth of it in each interval.
    assert seen == pytest.approx([750_000 - 125_000 * k for k in range(len(seen))])
    assert len(seen) == 6
    assert execution.result().end_s.max() == pytest.approx(0.25 + 6 * 0.3)


@pytest.mark.parametrize("how", ["exact", "classes"])
@pytest.mark.parametrize(("decision_s", "period_s"), [(0.2, 0.3), (0.4, 0.4)])
def test_a_decision_is_made_of_bytes_that_are_as_old_as_it_takes(
    how: Fidelity, decision_s: float, period_s: float
) -> None:
    """Light shines on meanwhile, and for as long as the next decision takes where that is longer."""
    seen: list[float] = []

    def decide(left: FloatArray) -> FloatArray:
        seen.append(float(left[1]))
        return np.full(4, RATE_BPS)

    _, execution, _ = run(
        one_message(1_000_000), (0.3, 0.1), decide, how, decision_s=decision_s
    )
    first = period_s - decision_s
    assert seen == pytest.approx(
        [1e6 * (1 - first - period_s * k) for k in range(len(seen))]
    )
    assert execution.result().end_s.max() == pytest.approx(1 + 0.1 * int(1 / period_s))


@pytest.mark.parametrize("how", ["exact", "classes"])
def test_with_nothing_left_it_looks_again_an_interval_later(how: Fidelity) -> None:
    """It must not look for ever at one moment where a decision takes as long as an interval."""
    made, execution, _ = run(
        one_message(100_000, computing_s=1.05), (0.1, 0.0), lambda left: np.full(4, RATE_BPS), how,
        decision_s=0.2,
    )  # fmt: skip
    assert execution.result().end_s.max() == pytest.approx(1.15)
    assert made.decisions == 1


@pytest.mark.parametrize("how", ["exact", "classes"])
def test_it_says_when_light_never_comes(how: Fidelity) -> None:
    with pytest.raises(
        ValueError,
        match="nothing moves any more: 1 pairs have something to send, and 1 of them",
    ):
        run(one_message(1_000_000), (0.1, 0.05), lambda left: np.zeros(4), how)


@pytest.mark.parametrize("how", ["exact", "classes"])
def test_less_than_a_byte_in_the_dark_is_still_sent(how: Fidelity) -> None:
    dark = np.zeros(16)

    def decide(left: FloatArray) -> FloatArray:
        return np.where(left > 0, RATE_BPS, 0.0)

    _, execution, _ = run(rings(4, 2), (0.1, 0.01), decide, how, first=dark)
    assert execution.over


@pytest.mark.parametrize("how", ["exact", "classes"])
def test_parts_of_no_bytes_end_in_the_dark(how: Fidelity) -> None:
    workload = rings(4, 0)
    _, execution, _ = run(
        workload, (0.1, 0.01), lambda left: left, how, first=np.zeros(16)
    )
    assert execution.over


@pytest.mark.parametrize("groups", [1, 3])
def test_classes_are_as_fast_as_ranks(groups: int) -> None:
    def decide(left: FloatArray) -> FloatArray:
        return RATE_BPS * left / left.max()

    ends = []
    for how in ("exact", "classes"):
        _, execution, _ = run(rings(4, 400_000, groups), (0.043, 0.0117), decide, how)
        ends.append(float(execution.result().end_s.max()))
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)
    assert ends[0] > 6 * 0.1 + 0.1


@pytest.mark.parametrize(
    "cost", [StepCost(), StepCost(set_up_s=0.004, reduce_s_per_byte=1e-8)]
)
@pytest.mark.parametrize("latency_s", [0.0, 0.003, 0.02])
def test_latency_and_set_up_go_on_in_the_dark(latency_s: float, cost: StepCost) -> None:
    """In classes as by rank: only bytes stand still, and only those of the step under way count as such."""
    found = []
    for how in ("exact", "classes"):
        seen: list[float] = []

        def decide(left: FloatArray, seen: list[float] = seen) -> FloatArray:
            seen.append(float(left.sum()))
            return np.full(64, RATE_BPS)

        made, execution, _ = run(
            rings(8, 200_000),
            (0.043, 0.0117),
            decide,
            how,
            latency_s=latency_s,
            cost=cost,
        )
        found.append(
            (
                float(execution.result().end_s.max()),
                made.decisions,
                made.dark_s,
                max(seen),
            )
        )
    assert found[0] == pytest.approx(found[1], rel=1e-9)


@pytest.mark.parametrize("how", ["exact", "classes"])
def test_a_pair_without_light_waits_for_the_next_decision(how: Fidelity) -> None:
    dark = np.zeros(4)
    _, execution, _ = run(
        one_message(100_000),
        (0.5, 0.0),
        lambda left: np.full(4, RATE_BPS),
        how,
        first=dark,
    )
    assert execution.result().end_s.max() == pytest.approx(0.6)


@pytest.mark.parametrize("how", ["exact", "classes"])
def test_it_ends_when_ranks_wait_for_each_other_for_ever(how: Fidelity) -> None:
    book = Book()
    writers = [Writer(book), Writer(book)]
    for writer, tags in zip(writers, ((0, 1), (1, 0)), strict=True):
        writer.receive("m", 8, 0, tags[1])
        writer.send("m", 8, 0, tags[0])
    stuck = book.workload(
        "stuck", [w.done() for w in writers], [0, 1], [[], []], [[1], [0]]
    )
    _, execution, _ = run(stuck, (0.1, 0.0), lambda left: np.full(4, RATE_BPS), how)
    assert execution.standstill() is not None


def test_it_waits_while_ranks_compute() -> None:
    made, execution, _ = run(
        one_message(100_000, computing_s=1.05),
        (0.1, 0.0),
        lambda left: np.full(4, RATE_BPS),
    )
    assert execution.result().end_s.max() == pytest.approx(1.15)
    assert made.decisions == 1
