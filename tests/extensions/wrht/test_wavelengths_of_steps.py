"""Wavelengths that the steps of collectives are given on a ring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.wrht import wdm
from ringlight.fabric.algorithms import STEPS
from ringlight.fabric.schedules import (
    bidirectional_hierarchical_ring,
    hierarchical_ring,
)
from ringlight.fabric.steps import Step, Steps, frozen
from ringlight.fabric.verify import verify

SIZES = [*range(1, 34), 45, 64]


@pytest.mark.parametrize("n", SIZES)
def test_a_striped_ring_sums_every_chunk_exactly_once(n: int) -> None:
    verify("all-reduce", wdm.striped(STEPS["ring"](n), 3))


def test_alike_steps_of_stripes_share_their_arrays() -> None:
    striped = list(wdm.collective_on_ring("ring-striped", 64, 8))
    assert len({id(s.destinations) for s in striped}) <= 2


def conflict_free(steps: Steps, wavelengths: int) -> bool:
    """Written apart from wdm.check_wavelengths: walks every lightpath segment by segment."""
    n = steps.world_size
    for step in steps:
        assert step.wavelengths is not None
        assert step.clockwise is not None
        lit: dict[tuple[int, bool, int], tuple[int, int]] = {}
        rows = zip(
            step.sources.tolist(), step.destinations.tolist(), step.wavelengths.tolist(),
            step.clockwise.tolist(), strict=True,
        )  # fmt: skip
        for source, destination, wavelength, clockwise in rows:
            at = source
            if not 0 <= wavelength < wavelengths:
                return False
            while at != destination:
                after = (at + (1 if clockwise else -1)) % n
                lane = (at if clockwise else after, clockwise, wavelength)
                if lit.setdefault(lane, (source, destination)) != (source, destination):
                    return False
                at = after
    return True


# Other collectives on the ring of wavelengths


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("n", [2, 3, 7, 8, 16, 33])
def test_every_collective_can_be_given_wavelengths(name: str, n: int) -> None:
    steps = wdm.on_ring(STEPS[name](n), n)
    assert conflict_free(steps, n)
    verify("all-reduce", steps)


def test_a_ring_needs_one_wavelength_and_can_use_all() -> None:
    assert conflict_free(wdm.on_ring(STEPS["ring"](16), 1), 1)
    assert conflict_free(wdm.on_ring(STEPS["binary-tree"](16), 1), 1)
    striped = wdm.striped(STEPS["ring"](16), 4)
    assert conflict_free(striped, 4)
    assert next(iter(striped)).sources.shape == (64,)
    with pytest.raises(ValueError, match="step 3: no wavelength of 1 is free for 1->5"):
        list(wdm.on_ring(hierarchical_ring(16, 4), 1))


def test_a_bidirectional_ring_uses_both_fibres_at_once() -> None:
    for n in (3, 9, 16):
        for step in wdm.on_ring(STEPS["bidirectional-ring"](n), 1):
            assert step.wavelengths is not None
            assert step.clockwise is not None
            assert step.clockwise.tolist() == [True] * n + [False] * n
            assert ((step.destinations - step.sources) % n).tolist() == [1] * n + [
                n - 1
            ] * n
            assert step.count.tolist() == [1] * 2 * n
    # The way back inside a group lies over the other half's ways, so two wavelengths inside; across, m.
    for m, least in ((3, 3), (4, 4), (8, 8), (2, 2)):
        steps = bidirectional_hierarchical_ring(16 if m != 3 else 9, m)
        assert conflict_free(wdm.on_ring(steps, least), least)
        with pytest.raises(ValueError, match=f"no wavelength of {least - 1} is free"):
            list(wdm.on_ring(steps, least - 1))


@settings(max_examples=200)
@given(st.data())
def test_each_lightpath_has_the_lowest_wavelength_that_its_segments_leave_free(
    data: st.DataObject,
) -> None:
    nodes, wavelengths = data.draw(st.integers(2, 12)), data.draw(st.integers(1, 6))
    ends = st.tuples(st.integers(0, nodes - 1), st.integers(1, nodes - 1))
    sent = data.draw(st.lists(ends, min_size=1, max_size=20, unique=True))
    sources = frozen([a for a, _ in sent])
    one = frozen(np.ones(len(sent)))
    step = Step(
        sources,
        frozen([(a + length) % nodes for a, length in sent]),
        one - 1,
        one,
        "reduce",
    )

    # The plain way: what is lit is kept segment by segment.
    clockwise = np.array([2 * length <= nodes for _, length in sent])
    segments = [
        {
            (way, (a + k if way else a - k - 1) % nodes)
            for k in range(length if way else nodes - length)
        }
        for (a, length), way in zip(sent, clockwise.tolist(), strict=True)
    ]
    lit: list[set[tuple[bool, int]]] = [set() for _ in range(wavelengths)]
    expected = [-1] * len(sent)
    order = sorted(
        range(len(sent)),
        key=lambda k: (sent[k][0] if clockwise[k] else -sent[k][0], len(segments[k])),
    )
    for k in order:
        free = [w for w in range(wavelengths) if not lit[w] & segments[k]]
        if not free:
            with pytest.raises(
                ValueError, match=f"no wavelength of {wavelengths} is free for"
            ):
                wdm.assign(step, nodes, wavelengths)
            return
        expected[k] = free[0]
        lit[free[0]] |= segments[k]

    found = wdm.assign(step, nodes, wavelengths)
    assert found.wavelengths is not None
    assert found.wavelengths.tolist() == expected


def test_two_ranks_share_their_one_lightpath() -> None:
    (step, _) = wdm.on_ring(STEPS["bidirectional-ring"](2), 1)
    assert step.wavelengths is not None
    assert step.clockwise is not None
    assert (step.sources.tolist(), step.destinations.tolist()) == (
        [0, 1, 1, 0],
        [1, 0, 0, 1],
    )
    assert step.wavelengths.tolist() == [0] * 4
    wdm.check_wavelengths(step, 2, 1)
    other = replace(step, clockwise=~step.clockwise)
    wdm.check_wavelengths(other, 2, 1)


def test_segments_go_the_way_the_light_goes() -> None:
    def walk(source: int, destination: int, clockwise: bool) -> Iterator[int]:
        _, passed = wdm.segments(
            frozen([source]), frozen([destination]), np.array([clockwise]), 5
        )
        return iter(passed.tolist())

    assert list(walk(3, 1, True)) == [6, 8, 0]
    assert list(walk(1, 3, False)) == [1, 9, 7]
