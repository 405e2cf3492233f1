from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.fabric.crossconnect import (
    BusyError,
    Changes,
    CrossConnect,
    MatchingError,
    Mode,
    check_matching,
    plan_changes,
)

PORTS = 5


def share_light(a: CrossConnect, b: CrossConnect) -> bool:
    """Whether two cross-connects would use one port for one colour; a second opinion."""
    colours_meet = (
        a.wavelength is None or b.wavelength is None or a.wavelength == b.wavelength
    )
    return colours_meet and (a.ingress == b.ingress or a.egress == b.egress)


def is_matching(group: frozenset[CrossConnect]) -> bool:
    return not any(share_light(a, b) for a, b in itertools.combinations(group, 2))


cross_connects = st.builds(
    CrossConnect,
    ingress=st.integers(1, PORTS),
    egress=st.integers(PORTS + 1, 2 * PORTS),
    wavelength=st.sampled_from([None, None, 0, 1]),
)


@st.composite
def matchings(draw: st.DrawFn) -> frozenset[CrossConnect]:
    chosen: list[CrossConnect] = []
    for xc in draw(st.lists(cross_connects, max_size=10)):
        if not any(share_light(xc, other) for other in chosen):
            chosen.append(xc)
    return frozenset(chosen)


def apply(
    current: frozenset[CrossConnect], changes: Changes
) -> frozenset[CrossConnect]:
    """What a device holds when it does the removals, then the additions; it refuses a busy port."""
    held = set(current)
    assert changes.remove <= held
    held -= changes.remove
    for xc in changes.add:
        assert not any(share_light(xc, other) for other in held), "added onto light"
        held.add(xc)
    return frozenset(held)


@given(st.lists(cross_connects, max_size=8))
def test_check_matching_agrees_with_the_definition(group: list[CrossConnect]) -> None:
    chosen = frozenset(group)
    if is_matching(chosen):
        assert check_matching(group) == chosen
    else:
        with pytest.raises(MatchingError) as caught:
            check_matching(group)
        error = caught.value
        assert share_light(error.first, error.second)
        for xc in (error.first, error.second):
            assert error.port in (xc.ingress, xc.egress)
        assert f"port {error.port} is wanted by both" in str(error)


@given(matchings(), matchings(), st.sampled_from(Mode))
def test_a_plan_does_what_its_mode_promises(
    current: frozenset[CrossConnect], wanted: frozenset[CrossConnect], mode: Mode
) -> None:
    in_the_way = {
        old
        for old in current - wanted
        for new in wanted - current
        if share_light(old, new)
    }
    if mode is Mode.SAFE and in_the_way:
        with pytest.raises(BusyError) as caught:
            plan_changes(current, wanted, mode)
        assert caught.value.holder in in_the_way
        assert (
            f"port {caught.value.port} is busy: it carries {caught.value.holder}"
            == str(caught.value)
        )
        assert caught.value.port in (
            caught.value.holder.ingress,
            caught.value.holder.egress,
        )
        return
    changes = plan_changes(current, wanted, mode)
    result = apply(current, changes)
    assert is_matching(result)
    assert wanted <= result
    assert changes.keep == current - changes.remove
    assert changes.keep | changes.add == result
    assert not changes.add & current
    assert not changes.keep & changes.add
    if mode is Mode.REPLACE:
        assert result == wanted
    elif mode is Mode.UPDATE:
        assert changes.remove == in_the_way
    else:
        assert not changes.remove
    assert bool(changes) == (result != current)
    assert not bool(plan_changes(result, wanted, mode)), (
        "doing it again must change nothing"
    )


@given(matchings(), matchings())
def test_kept_light_shares_no_colour_with_what_goes_dark(
    current: frozenset[CrossConnect], wanted: frozenset[CrossConnect]
) -> None:
    changes = plan_changes(current, wanted, Mode.REPLACE)
    touched = changes.remove | changes.add
    dark = {(p, xc.wavelength) for xc in touched for p in (xc.ingress, xc.egress)}
    assert not any(
        (p, xc.wavelength) in dark
        for xc in changes.keep
        for p in (xc.ingress, xc.egress)
    )
    assert current & wanted == changes.keep


def test_the_order_of_the_sets_does_not_change_the_answer() -> None:
    current = [CrossConnect(1, 11), CrossConnect(2, 12), CrossConnect(3, 13)]
    for order in itertools.permutations(current):
        with pytest.raises(BusyError, match="port 1 is busy: it carries 1->11"):
            plan_changes(order, [CrossConnect(1, 12)], Mode.SAFE)


def test_a_name_is_a_label() -> None:
    named = CrossConnect(1, 11, name="g0")
    assert not plan_changes([CrossConnect(1, 11)], [named], Mode.SAFE)


def test_colours_share_a_port_on_a_switch_that_tells_them_apart() -> None:
    red, blue = CrossConnect(1, 11, 0), CrossConnect(1, 12, 1)
    assert check_matching([red, blue]) == {red, blue}
    with pytest.raises(MatchingError, match="port 1"):
        check_matching([red, CrossConnect(1, 12)])


@pytest.mark.parametrize("mode", Mode)
def test_a_wanted_clash_is_refused_in_every_mode(mode: Mode) -> None:
    with pytest.raises(
        MatchingError, match="port 11 is wanted by both 1->11 and 2->11"
    ):
        plan_changes([], [CrossConnect(1, 11), CrossConnect(2, 11)], mode)


def test_a_swap_takes_both_down_and_leaves_the_rest() -> None:
    current = [CrossConnect(1, 11), CrossConnect(2, 12), CrossConnect(3, 13)]
    changes = plan_changes(
        current, [CrossConnect(1, 12), CrossConnect(2, 11)], Mode.UPDATE
    )
    assert changes.keep == {CrossConnect(3, 13)}
    assert changes.remove == {CrossConnect(1, 11), CrossConnect(2, 12)}
