from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.fabric.cost import max_min_rates
from ringlight.testbed.simulation.maxmin import (
    Limits,
    drain,
    rates,
    rates_of_few,
    rates_of_many,
)


def case(paths: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, paths)])
    return offsets, np.array([link for path in paths for link in path], dtype=np.int64)


@st.composite
def fabrics(draw: st.DrawFn) -> tuple[list[list[int]], np.ndarray]:
    links = draw(st.integers(1, 8))
    paths = draw(
        st.lists(
            st.lists(st.integers(0, links - 1), min_size=1, max_size=5, unique=True),
            min_size=1,
            max_size=12,
        )
    )
    capacity = draw(
        st.lists(
            st.sampled_from([1.0, 2.5, 3.0, 10.0, 40.0]), min_size=links, max_size=links
        )
    )
    return paths, np.array(capacity)


@given(fabrics())
def test_rates_are_those_of_the_plain_filling(
    fabric: tuple[list[list[int]], np.ndarray],
) -> None:
    paths, capacity = fabric
    plain = max_min_rates(paths, dict(enumerate(capacity.tolist())))
    assert rates(*case(paths), capacity) == pytest.approx(plain, rel=1e-9)


@given(fabrics())
def test_rates_of_few_are_the_same_to_the_last_bit(
    fabric: tuple[list[list[int]], np.ndarray],
) -> None:
    paths, capacity = fabric
    free = Limits([math.inf] * len(paths))
    assert (
        rates_of_few(paths, dict(enumerate(capacity.tolist())), free)
        == rates(*case(paths), capacity).tolist()
    )


Limited = tuple[list[list[int]], np.ndarray, Limits]


@st.composite
def limited(draw: st.DrawFn) -> Limited:
    paths, capacity = draw(fabrics())
    flows = range(len(paths))
    limit = st.sampled_from([0.0, 0.25, 1.0, 3.0, math.inf])
    most = [draw(limit) for _ in flows]
    # Each follows one, and is followed by one, as on rings.
    order = draw(st.permutations(flows))
    after = [order[k] if draw(st.booleans()) and order[k] != k else -1 for k in flows]
    return paths, capacity, Limits(most, after)


@given(limited())
def test_limited_rates_of_few_are_the_same_to_the_last_bit(drawn: Limited) -> None:
    paths, capacity, limits = drawn
    few = rates_of_few(paths, dict(enumerate(capacity.tolist())), limits)
    assert few == rates_of_many(*case(paths), capacity, limits).tolist()


@given(limited())
def test_nobody_has_more_than_its_limits_and_something_holds_each(
    drawn: Limited,
) -> None:
    """A flow is held by its limit or a full link on which nobody has more, or has the rate of one that is."""
    paths, capacity, limits = drawn
    found = np.array(rates_of_few(paths, dict(enumerate(capacity.tolist())), limits))
    load, most = np.zeros(len(capacity)), np.zeros(len(capacity))
    for path, rate in zip(paths, found, strict=True):
        load[path] += rate
        most[path] = np.maximum(most[path], rate)
    assert (load <= capacity * (1 + 1e-9)).all()
    full = load >= capacity * (1 - 1e-9)
    for k, rate in enumerate(found):
        assert rate <= limits.most[k]
        assert limits.after[k] < 0 or rate <= found[limits.after[k]] * (1 + 1e-9)
        holders = [k]
        while (ahead := limits.after[holders[-1]]) >= 0 and ahead not in holders:
            holders.append(ahead)
        as_slow = [j for j in holders if found[j] <= rate * (1 + 1e-9)]
        assert any(found[j] >= limits.most[j] for j in as_slow) or any(
            full[link] and most[link] <= found[j] * (1 + 1e-9)
            for j in as_slow
            for link in paths[j]
        )


@given(fabrics())
def test_rates_are_max_min(fabric: tuple[list[list[int]], np.ndarray]) -> None:
    """Every flow passes a full link on which none has more than it has (Bertsekas and Gallager)."""
    paths, capacity = fabric
    found = rates(*case(paths), capacity)
    load = np.zeros(len(capacity))
    most = np.zeros(len(capacity))
    for path, rate in zip(paths, found, strict=True):
        for link in path:
            load[link] += rate
            most[link] = max(most[link], rate)
    assert (load <= capacity * (1 + 1e-9)).all()
    for path, rate in zip(paths, found, strict=True):
        assert any(
            load[k] >= capacity[k] * (1 - 1e-9) and most[k] <= rate * (1 + 1e-9)
            for k in path
        )


def plain_drain(
    paths: list[list[int]],
    capacity: np.ndarray,
    sizes: list[float],
    starts: list[float],
) -> list[float]:
    """The definition: all rates anew after every event."""
    left = dict(enumerate(sizes))
    ends = [
        start if size == 0 else 0.0 for size, start in zip(sizes, starts, strict=True)
    ]
    left = {k: size for k, size in left.items() if size > 0}
    now = 0.0
    while left:
        active = [k for k in left if starts[k] <= now]
        coming = [starts[k] for k in left if starts[k] > now]
        if not active:
            now = min(coming)
            continue
        rate = dict(
            zip(
                active,
                max_min_rates([paths[k] for k in active], dict(enumerate(capacity))),
                strict=True,
            )
        )
        then = min([now + left[k] / rate[k] for k in active] + coming)
        for k in active:
            over = now + left[k] / rate[k] <= then * (1 + 1e-12)
            left[k] -= rate[k] * (then - now)
            if over or left[k] <= 1e-12 * sizes[k]:
                del left[k]
                ends[k] = then
        now = then
    return ends


@given(fabrics(), st.data())
def test_flows_end_when_they_should(
    fabric: tuple[list[list[int]], np.ndarray], data: st.DataObject
) -> None:
    paths, capacity = fabric
    n = len(paths)
    sizes = data.draw(
        st.lists(st.sampled_from([0.0, 1.0, 2.0, 7.5, 30.0]), min_size=n, max_size=n)
    )
    starts = data.draw(
        st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.0, 4.0]), min_size=n, max_size=n)
    )
    expected = plain_drain(paths, capacity, sizes, starts)
    for compiled in (True, False, None):
        found = drain(
            *case(paths), capacity, np.array(sizes), np.array(starts), compiled=compiled
        )
        assert found == pytest.approx(expected, rel=1e-9)


@given(st.data())
def test_flows_that_share_nothing_end_as_if_they_might(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    links = data.draw(st.permutations(range(sum(lengths))))
    ends = list(itertools.accumulate(lengths, initial=0))
    paths = [links[a:b] for a, b in itertools.pairwise(ends)]
    capacity = np.array(
        data.draw(
            st.lists(
                st.sampled_from([1.0, 2.5, 40.0]),
                min_size=len(links),
                max_size=len(links),
            )
        )
    )
    sizes, starts = (
        np.array(
            data.draw(
                st.lists(
                    st.sampled_from([0.0, 1.0, 7.5]),
                    min_size=len(paths),
                    max_size=len(paths),
                )
            )
        )
        for _ in range(2)
    )
    known = drain(*case(paths), capacity, sizes, starts, compiled=False)
    assert drain(*case(paths), capacity, sizes, starts) == pytest.approx(
        known, rel=1e-12
    )
    # A way twice over one link shares with itself.
    paths[0] = [*paths[0], paths[0][0]]
    known = drain(*case(paths), capacity, sizes, starts, compiled=False)
    assert drain(*case(paths), capacity, sizes, starts) == pytest.approx(
        known, rel=1e-12
    )


def test_many_random_flows_end_alike_both_ways() -> None:
    random = np.random.default_rng(3)
    paths = [
        random.choice(40, random.integers(1, 6), replace=False).tolist()
        for _ in range(120)
    ]
    capacity = random.uniform(1, 20, 40)
    sizes, starts = (
        random.uniform(1, 100, 120),
        np.where(random.random(120) < 0.5, 0, random.uniform(0, 40, 120)),
    )
    one, other = (
        drain(*case(paths), capacity, sizes, starts, compiled=c) for c in (True, False)
    )
    assert one == pytest.approx(other, rel=1e-10)
    assert one == pytest.approx(
        plain_drain(paths, capacity, sizes.tolist(), starts.tolist()), rel=1e-9
    )


@pytest.mark.parametrize(
    ("paths", "capacity", "sizes", "message"),
    [
        ([[0], []], [1.0], [1.0, 1.0], "flow 1 passes no link"),
        ([[0, 1]], [1.0, 0.0], [1.0], "link 1: its capacity is 0; it must be above 0"),
        ([[0]], [float("nan")], [1.0], "link 0: its capacity is nan"),
        ([[2]], [1.0], [1.0], "link 2 is not one of 1"),
        ([[0]], [1.0], [-1.0], "flow 0: its size is -1.0"),
        ([[0]], [1.0], [float("inf")], "flow 0: its size is inf"),
    ],
)
def test_bad_input_is_named(
    paths: list[list[int]], capacity: list[float], sizes: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        drain(*case(paths), np.array(capacity), np.array(sizes))


def test_no_flows_end_at_once() -> None:
    assert len(drain(*case([]), np.ones(1), np.zeros(0))) == 0
    assert len(rates(*case([]), np.ones(1))) == 0


def test_a_shared_link_is_shared_equally_and_then_freed() -> None:
    for compiled, (a, b) in itertools.product((True, False), [(1.0, 3.0), (3.0, 1.0)]):
        ends = drain(
            *case([[0], [0]]), np.array([2.0]), np.array([a, b]), compiled=compiled
        )
        assert sorted(ends) == pytest.approx([1.0, 2.0])
