"""The model that random operations on light are held against: what it allows, and what it does not."""

from __future__ import annotations

from collections.abc import Mapping

from tests.light_model import (
    Carried,
    Change,
    Doubt,
    Outcome,
    Pair,
    SwitchPlan,
    Wish,
    World,
    after_all,
    at_rest,
    doubt_of,
    plan_of,
    touched,
    written,
)

A, B, C = (1, 9), (1, 10), (2, 10)
NONE: frozenset[Pair] = frozenset()
CALM = frozenset({"x", "y"})


def world(
    x: set[Pair], y: set[Pair] | None = None, foreign: set[Pair] | None = None
) -> World:
    """What should be lit on two switches, and what others have made on the first."""
    others = frozenset(foreign or ())
    return {
        "x": Carried(frozenset(x), frozenset(x) | others),
        "y": Carried(frozenset(y or ()), frozenset(y or ())),
    }


def put(
    *pairs: Pair,
    on: str = "x",
    safe: bool = False,
    outcome: Outcome = "done",
    plan: SwitchPlan | None = None,
    dry_run: bool = False,
    possible: bool = True,
) -> Change:
    wishes = {on: Wish(pairs, "safe" if safe else "update")}
    return Change(
        wishes, dry_run, possible, outcome, {} if plan is None else {on: plan}
    )


def planned(keep: set[Pair], remove: set[Pair], add: set[Pair]) -> SwitchPlan:
    return SwitchPlan(frozenset(keep), frozenset(remove), frozenset(add))


def intents(worlds: list[World], name: str = "x") -> set[frozenset[Pair]]:
    return {world[name].intent for world in worlds}


def test_two_changes_have_the_order_that_their_plans_show() -> None:
    first, second = (
        put(A, plan=planned(set(), set(), {A})),
        put(B, plan=planned(set(), {A}, {B})),
    )
    assert intents(after_all([world(set())], [second, first], CALM)) == {frozenset({B})}
    # Each as if it had been the first: no order explains that.
    both = [first, put(B, plan=planned(set(), set(), {B}))]
    assert after_all([world(set())], both, CALM) == []


def test_a_plan_that_leaves_what_others_made_in_the_way_is_none() -> None:
    right, less = planned(set(), {C}, {B}), planned({C}, set(), {B})
    assert after_all([world(set(), foreign={C})], [put(B, plan=right)], CALM)
    assert not after_all([world(set(), foreign={C})], [put(B, plan=less)], CALM)


def test_safe_mode_refuses_what_stands_and_nothing_else() -> None:
    done = put(B, safe=True, plan=planned(set(), {A}, {B}))
    refused = put(B, safe=True, outcome="conflict")
    assert not after_all([world({A})], [done], CALM)
    assert intents(after_all([world({A})], [refused], CALM)) == {frozenset({A})}
    assert not after_all([world(set())], [refused], CALM)
    assert not after_all([world({A})], [put(B, outcome="conflict")], CALM)


def test_where_nothing_is_broken_nothing_fails() -> None:
    answers: tuple[Outcome, ...] = ("undone", "away", "invalid")
    for outcome in answers:
        assert not after_all([world({A})], [put(B, outcome=outcome)], CALM)
        allowed = after_all([world({A})], [put(B, outcome=outcome)], frozenset({"y"}))
        assert intents(allowed) == {frozenset({A})}


def test_what_cannot_be_is_never_done_and_a_dry_run_changes_nothing() -> None:
    assert not after_all(
        [world(set())], [put(A, possible=False, plan=planned(set(), set(), {A}))], CALM
    )
    assert after_all([world(set())], [put(A, possible=False, outcome="invalid")], CALM)
    dry = put(B, dry_run=True, plan=planned(set(), {A}, {B}))
    assert intents(after_all([world({A})], [dry], CALM)) == {frozenset({A})}


def test_a_change_without_an_answer_has_come_about_on_all_its_switches_or_on_none() -> (
    None
):
    change = Change({"x": Wish((A,)), "y": Wish((C,))}, outcome="unknown")
    worlds = after_all([world(set())], [change], CALM)
    assert [(world["x"].intent, world["y"].intent) for world in worlds] == [
        (NONE, NONE),
        (frozenset({A}), frozenset({C})),
    ]
    half: Mapping[str, frozenset[Pair]] = {"x": frozenset({A}), "y": NONE}
    assert len(at_rest(worlds, {}, half, half)) == 1
    none: Mapping[str, frozenset[Pair]] = {"x": NONE, "y": NONE}
    assert at_rest(worlds, {}, none, none) == []


def test_what_others_made_stays_until_a_change_wants_its_ports() -> None:
    worlds = [world({A})]
    doubt = written(doubt_of(worlds, "x"), worlds, "x", Wish((C,)), surely=True)
    assert doubt == Doubt(frozenset({C}), frozenset({C}))
    intent = {"x": frozenset({A}), "y": NONE}
    assert (
        at_rest(worlds, {"x": doubt}, intent, {"x": frozenset({A, C}), "y": NONE}) == []
    )
    assert at_rest(worlds, {"x": doubt}, intent, intent) == [
        "x: 2->10, which somebody made by hand, is gone"
    ]
    gone = touched(doubt, Wish((B,)))
    assert at_rest(worlds, {"x": gone}, intent, intent) == []
    strange = {"x": frozenset({A, (3, 11)}), "y": NONE}
    assert at_rest(worlds, {"x": gone}, intent, strange) == ["x: nobody made 3->11"]
    # In the way of what should be lit it goes by itself.
    assert (
        written(doubt_of(worlds, "x"), worlds, "x", Wish((B,)), surely=True).must
        == NONE
    )


def test_what_should_be_lit_is_missed() -> None:
    worlds, intent = [world({A}, foreign={C})], {"x": frozenset({A}), "y": NONE}
    dark = {"x": frozenset({C}), "y": NONE}
    assert at_rest(worlds, {}, intent, dark) == [
        "x: it carries 2->10, the model 1->9 2->10"
    ]
    assert at_rest(worlds, {"x": doubt_of(worlds, "x")}, intent, dark) == [
        "x: 1->9 should be lit and is not"
    ]
    assert (
        "the controller wants nothing"
        in at_rest(worlds, {}, {**intent, "x": NONE}, dark)[0]
    )


def test_a_plan_keeps_what_it_can() -> None:
    wish = Wish((B,), "update", (2,))
    assert plan_of(frozenset({A, (2, 11), (3, 12)}), wish) == planned(
        {(3, 12)}, {A, (2, 11)}, {B}
    )
    assert plan_of(frozenset({A, B}), Wish((B,), "replace")) == planned({B}, {A}, set())
