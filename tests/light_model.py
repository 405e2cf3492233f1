"""Model of a fabric's light: what each optical switch should carry, who made that, what may be answered.

Pure, and written from docs/changing-light.md, not from the controller's code. Several clients change light at
the same time. Each change is made on all of its switches or on none, one change after another, in an order
that only the controller knows. So the model keeps every `World` that the answers allow: an answer that no
order explains leaves none. A change without an answer, as the controller was killed, may have come about or
not, until the switches are at rest and are read.

On a calm switch only the controller writes, and nothing fails: the switch carries exactly what its world
says, and every plan follows from that. A switch that was written by hand, had a fault, was frozen or killed
is not calm: a change may fail as a whole, and what others made may go where a change wants its ports
(`Doubt`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

#: An ingress and its egress.
Pair = tuple[int, int]
Pairs = frozenset[Pair]
Mode = Literal["safe", "update", "replace"]
#: ``done``; ``conflict``: 409; ``invalid``: 422; ``undone``: 502, all taken back; ``away``: 503, not begun;
#: ``unsent``: nobody listened; ``unknown``: the connection ended without an answer.
Outcome = Literal["done", "conflict", "invalid", "undone", "away", "unsent", "unknown"]


@dataclass(frozen=True)
class Wish:
    """What one switch shall carry: ``pairs`` in ``mode``; nothing at the ``delete`` ingresses."""

    pairs: tuple[Pair, ...] = ()
    mode: Mode = "update"
    delete: tuple[int, ...] = ()


@dataclass(frozen=True)
class SwitchPlan:
    """What an answer says that a switch keeps, removes and adds."""

    keep: Pairs
    remove: Pairs
    add: Pairs


@dataclass(frozen=True)
class Change:
    """One change of light and its answer. ``possible``: whether the fabric could ever have it."""

    wishes: Mapping[str, Wish]
    dry_run: bool = False
    possible: bool = True
    outcome: Outcome = "done"
    plans: Mapping[str, SwitchPlan] = field(default_factory=dict)


@dataclass(frozen=True)
class Carried:
    """One switch: what it should carry, and what stands on it while it is calm."""

    intent: Pairs
    stands: Pairs


World = Mapping[str, Carried]


@dataclass(frozen=True)
class Doubt:
    """What others made on a switch that is not calm: what may stand there, and what must."""

    may: Pairs
    must: Pairs


def clash(pair: Pair, other: Pair) -> bool:
    """Return whether two different pairs want one port."""
    return pair != other and (pair[0] == other[0] or pair[1] == other[1])


def clashing(group: Iterable[Pair], comers: Iterable[Pair]) -> Pairs:
    """Return those of a group that stand where one of the comers would."""
    comers = tuple(comers)
    return frozenset(
        pair for pair in group if any(clash(pair, comer) for comer in comers)
    )


def after(pairs: Pairs, wish: Wish) -> Pairs:
    """Return what a set of pairs becomes by a wish that nothing refuses."""
    left = frozenset(pair for pair in pairs if pair[0] not in wish.delete)
    kept = (
        frozenset[Pair]()
        if wish.mode == "replace"
        else left - clashing(left, wish.pairs)
    )
    return kept | frozenset(wish.pairs)


def plan_of(stands: Pairs, wish: Wish) -> SwitchPlan:
    """Return the smallest change of what stands to what is wished."""
    becomes = after(stands, wish)
    return SwitchPlan(stands & becomes, stands - becomes, becomes - stands)


def carried_out(world: World, change: Change) -> World:
    """Return the world after a change."""
    return {
        name: Carried(after(old.intent, wish), after(old.stands, wish))
        if (wish := change.wishes.get(name))
        else old
        for name, old in world.items()
    }


def _refuses(stands: Pairs, wish: Wish) -> bool:
    return wish.mode == "safe" and bool(
        clashing(frozenset(p for p in stands if p[0] not in wish.delete), wish.pairs)
    )


def nexts(world: World, change: Change, calm: frozenset[str]) -> list[World]:
    """Return the worlds that a change with this answer may lead to; none where the answer cannot be."""
    wishes = change.wishes
    if change.outcome == "unsent":
        return [world]
    if change.outcome == "unknown":
        impossible = change.dry_run or not change.possible
        return [world] if impossible else [world, carried_out(world, change)]
    if change.outcome == "done":
        if not change.possible:
            return []
        for name in calm & wishes.keys():
            stands = world[name].stands
            if _refuses(stands, wishes[name]) or change.plans.get(name) != plan_of(
                stands, wishes[name]
            ):
                return []
        return [world if change.dry_run else carried_out(world, change)]
    if change.outcome == "conflict":
        refuses = any(
            wish.mode == "safe"
            and (name not in calm or _refuses(world[name].stands, wish))
            for name, wish in wishes.items()
        )
        return [world] if refuses else []
    if change.outcome == "invalid":
        return [world] if not change.possible or wishes.keys() - calm else []
    return [world] if wishes.keys() - calm else []


def after_all(
    worlds: Sequence[World], changes: Sequence[Change], calm: frozenset[str]
) -> list[World]:
    """Return the worlds after simultaneous changes, in every order that explains their answers."""
    reached: dict[frozenset[tuple[str, Carried]], World] = {}

    def go(world: World, left: Sequence[Change]) -> None:
        if not left:
            reached[frozenset(world.items())] = world
        for index, change in enumerate(left):
            for following in nexts(world, change, calm):
                go(following, [*left[:index], *left[index + 1 :]])

    for world in worlds:
        go(world, changes)
    return list(reached.values())


# What others make


def doubt_of(worlds: Sequence[World], name: str) -> Doubt:
    """Return what is known of others' pairs on a switch that has been calm until now."""
    others = [world[name].stands - world[name].intent for world in worlds]
    return Doubt(frozenset().union(*others), others[0].intersection(*others))


def touched(doubt: Doubt, wish: Wish) -> Doubt:
    """Return the doubt after a change that may have come about, as a whole, in part or for a while."""
    if wish.mode == "replace":
        return replace(doubt, must=frozenset())
    doubtful = clashing(doubt.must, wish.pairs) | doubt.must & frozenset(wish.pairs)
    return replace(
        doubt,
        must=frozenset(p for p in doubt.must - doubtful if p[0] not in wish.delete),
    )


def written(
    doubt: Doubt, worlds: Sequence[World], name: str, wish: Wish, *, surely: bool
) -> Doubt:
    """Return the doubt after a write by hand. ``surely``: the switch answered, and nobody else wrote."""
    left = touched(doubt, wish)
    intents = frozenset().union(*(world[name].intent for world in worlds))
    new = frozenset(wish.pairs)
    # What should be lit comes back, in place of what stands in its way.
    stays = new - clashing(new, intents) - intents if surely else frozenset()
    return Doubt(left.may | new, left.must | stays)


# At rest


def wrong(
    world: World, doubts: Mapping[str, Doubt], name: str, intent: Pairs, stands: Pairs
) -> str:
    """Return how a switch at rest differs from what a world allows; empty where it does not.

    ``intent``: what the controller says that it should carry; ``stands``: what it carries.
    """
    expected = world[name]
    if intent != expected.intent:
        return (
            f"the controller wants {shown(intent)}, the model {shown(expected.intent)}"
        )
    doubt = doubts.get(name)
    if doubt is None:
        return (
            ""
            if stands == expected.stands
            else f"it carries {shown(stands)}, the model {shown(expected.stands)}"
        )
    if missing := intent - stands:
        return f"{shown(missing)} should be lit and is not"
    if strange := stands - intent - doubt.may:
        return f"nobody made {shown(strange)}"
    if lost := doubt.must - stands:
        return f"{shown(lost)}, which somebody made by hand, is gone"
    return ""


def at_rest(
    worlds: Sequence[World],
    doubts: Mapping[str, Doubt],
    intents: Mapping[str, Pairs],
    stands: Mapping[str, Pairs],
) -> list[str]:
    """Return what is wrong with the switches by the world that explains most; nothing if one explains all."""

    def complaints(world: World) -> list[str]:
        texts = {
            name: wrong(world, doubts, name, intents[name], stands[name])
            for name in world
        }
        return [f"{name}: {text}" for name, text in texts.items() if text]

    return min(map(complaints, worlds), key=len)


def shown(pairs: Iterable[Pair]) -> str:
    """Return pairs as text, in order."""
    return " ".join(f"{a}->{b}" for a, b in sorted(pairs)) or "nothing"
