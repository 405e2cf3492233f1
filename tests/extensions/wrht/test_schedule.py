"""WRHT's schedule: sums, lightpaths, and steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.wrht import wdm
from ringlight.extensions.wrht.schedule import (
    exchange_lightpaths,
    exchange_wavelengths,
    plan,
    wrht,
)
from ringlight.fabric.algorithms import STEPS, steps_named
from ringlight.fabric.crossconnect import CrossConnect, check_matching
from ringlight.fabric.steps import Steps, frozen
from tests.extensions.wrht.test_wavelengths_of_steps import conflict_free
from tests.unit.test_schedules import check_spoilt, check_sums

ALL: dict[str, Callable[[int], Steps]] = {
    "wrht": wrht,
    "wrht, 2 wavelengths": lambda n: wrht(n, 2),
    "wrht, exchange": lambda n: wrht(n, 4, top="exchange"),
    "wrht, groups of 2": lambda n: wrht(n, 1, group=2),
    "wrht, reach 3": lambda n: wrht(n, 2, reach=3),
    "wrht, exchange, reach 1": lambda n: wrht(n, 1, top="exchange", reach=1),
}


@pytest.mark.parametrize("name", ALL)
def test_every_chunk_is_summed_exactly_once(name: str) -> None:
    check_sums(ALL[name])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("n", [2, 3, 6, 8, "many"])
def test_an_off_by_one_anywhere_is_noticed(name: str, n: int | str, long: bool) -> None:
    check_spoilt(name, ALL[name](n if isinstance(n, int) else 11 if long else 5))


def test_it_goes_by_its_name() -> None:
    assert steps_named("wrht", 25).steps == 6
    assert steps_named("wrht-2", 25).steps == 4
    assert steps_named("wrht-4-exchange", 25).steps == 3
    for wrong in ("wrht-0", "wrht-", "wrht--1", "wrht-2-"):
        with pytest.raises(
            ValueError, match=f"no collective '{wrong}'; there are ring, .* wrht"
        ):
            steps_named(wrong, 4)


@given(
    st.integers(2, 300), st.integers(1, 20), st.sampled_from(["collect", "exchange"]),
    st.none() | st.integers(1, 40), st.data(),
)  # fmt: skip
@settings(max_examples=120)
def test_wrht_never_lights_a_wavelength_twice(
    n: int, w: int, top: str, reach: int | None, data: st.DataObject
) -> None:
    group = data.draw(st.none() | st.integers(2, 2 * w + 1))
    tree = plan(n, w, group, top, reach)  # type: ignore[arg-type]
    steps = wrht(n, w, group, top, reach)  # type: ignore[arg-type]
    assert conflict_free(steps, w)
    for number, step in enumerate(steps):
        wdm.check_wavelengths(step, n, w, number)
    assert sum(1 for _ in steps) == tree.steps
    if reach is not None:
        assert tree.longest_segments <= reach
    elif not any(level.exchange for level in tree.levels):
        size = min(2 * w + 1, n) if group is None else group
        levels, present = 0, n
        while present > 1:
            present, levels = -(-present // max(2, size)), levels + 1
        assert tree.steps == 2 * levels
        assert tree.buffer_vectors == min(max(2, size), n) - 1


def test_a_wavelength_too_many_is_noticed() -> None:
    step = next(iter(wrht(9, 2, group=5)))
    assert step.wavelengths is not None
    flat = replace(step, wavelengths=frozen(np.zeros(len(step))))
    with pytest.raises(
        ValueError,
        match="step 3: segment 1-2 carries wavelength 0 twice, for 0->2 and 1->2",
    ):
        wdm.check_wavelengths(flat, 9, 2, 3)
    with pytest.raises(ValueError, match="wavelength 1 does not fit; the ring has 1"):
        wdm.check_wavelengths(step, 9, 1)
    with pytest.raises(ValueError, match="have no wavelengths"):
        wdm.check_wavelengths(next(iter(STEPS["ring"](4))), 4, 1)


@pytest.mark.parametrize("k", range(2, 40))
def test_the_exchange_uses_the_fewest_wavelengths(k: int) -> None:
    paths = exchange_lightpaths(range(k))
    assert {(p.source, p.destination) for p in paths} == {
        (a, b) for a in range(k) for b in range(k) if a != b
    }
    assert len(paths) == k * (k - 1)
    lit = set()
    for p in paths:
        at = p.source
        while at != p.destination:
            after = (at + (1 if p.clockwise else -1)) % k
            lane = (at if p.clockwise else after, p.clockwise, p.wavelength)
            assert lane not in lit
            lit.add(lane)
            at = after
    assert max(p.wavelength for p in paths) + 1 == exchange_wavelengths(k)
    # The load: with shortest ways each fibre's segment is passed this often, and no way is shorter.
    load = sum(min(d, k - d) for d in range(1, k)) / 2
    assert exchange_wavelengths(k) == math.ceil(load)


# systems.md, section 5: w, n, levels, representatives at the top, wavelengths for the exchange, best steps
TABLE = [
    (64, 64, 1, None, None, 2), (64, 128, 1, None, None, 2), (64, 256, 2, 2, 1, 3), (64, 512, 2, 4, 2, 3),
    (64, 1024, 2, 8, 8, 3), (64, 2048, 2, 16, 32, 3), (64, 3072, 2, 24, 72, 4), (64, 4096, 2, 32, 128, 4),
    (16, 1024, 2, 32, 128, 4), (16, 2048, 3, 2, 1, 5), (16, 4096, 3, 4, 2, 5), (4, 1024, 4, 2, 1, 7),
    (4, 4096, 4, 6, 5, 8),
]  # fmt: skip


@pytest.mark.parametrize(("w", "n", "levels", "top", "exchange", "best"), TABLE)
def test_the_table_of_the_reference(
    w: int, n: int, levels: int, top: int | None, exchange: int | None, best: int
) -> None:
    tree = plan(n, w)
    assert len(tree.levels) == levels
    assert tree.steps == 2 * levels
    if top is not None:
        assert len(tree.levels[-1].groups[0]) == top
        assert exchange_wavelengths(top) == exchange
    assert plan(n, w, top="exchange").steps == best


def test_the_published_comparison_with_a_binary_tree() -> None:
    reductions = [
        1 - wrht(n, 64).steps / STEPS["binary-tree"](n).steps
        for n in (1024, 2048, 3072, 4096)
    ]
    assert round(100 * sum(reductions) / 4, 2) == 82.12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1), "at least one rank, not 0"),
        ((9, 0), "at least one wavelength, not 0"),
        ((9, 1, 4), "groups of 4 need 2 wavelengths in each direction; the ring has 1"),
        ((9, 1, 1), "a group has at least 2 nodes"),
        ((9, 1, None, "collect", 0), "reach of 0 segments"),
    ],
)
def test_what_does_not_fit_is_named(arguments: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrht(*arguments)


def test_the_representative_is_in_the_middle() -> None:
    tree = plan(9, 1)
    assert [level.groups for level in tree.levels] == [
        ((0, 1, 2), (3, 4, 5), (6, 7, 8)),
        ((1, 4, 7),),
    ]
    assert tree.steps == 4
    assert tree.buffer_vectors == 2
    assert plan(25, 2).steps == 4
    assert plan(27, 1).steps == 6
    assert plan(1, 1).steps == 0


def test_a_short_reach_costs_steps() -> None:
    steps = [plan(1024, 64, reach=reach).steps for reach in (1024, 64, 32, 8, 2, 1)]
    assert steps == sorted(steps)
    assert steps[0] == 4
    assert steps[-1] >= 1023 // 2


def test_a_ring_as_a_fabric_and_its_cross_connects() -> None:
    fabric, ring = wdm.wdm_ring("n", 9, 1, 40e9)
    assert len(fabric.links) == 27
    assert fabric.optical_switches["n-w4"].wavelengths == 1
    for step in wrht(9, 1):
        for group in wdm.cross_connects(ring, fabric, step).values():
            check_matching(group)
    first = wdm.cross_connects(ring, fabric, next(iter(wrht(9, 1))))
    # Node 0 sends clockwise to node 1, which drops light from both sides.
    assert first["n-w0"] == {CrossConnect(3, 4 + 2, 0)}
    assert first["n-w1"] == {CrossConnect(1, 4 + 3, 0), CrossConnect(2, 4 + 4, 0)}
