"""The generation of the light: nobody changes light that somebody else has changed since they read it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from ringlight.controller.circuits.altering import altered
from ringlight.controller.circuits.change import carried_after
from ringlight.controller.circuits.generation import EACH_START, moved_gpus
from ringlight.controller.errors import ConflictError, InvalidError
from ringlight.controller.packets.attachment import circuit_pairs
from ringlight.controller.rest.light_requests import CircuitsPatch, expected
from ringlight.controller.rest.requests import ClaimRequest, LightRequest
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.parts import Port
from tests.unit.test_controller_circuits import SWAPPED, Bench
from tests.unit.test_controller_rules import FABRIC, PORTS, light

GPUS = [Port(f"g{index}", 0) for index in range(6)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path / "state")
    bench.set(PORTS[:6])
    return bench


def pairs(places: Sequence[Port]) -> list[tuple[Port, Port]]:
    return list(zip(GPUS, places, strict=False))


def test_a_change_is_refused_that_expects_light_of_before(bench: Bench) -> None:
    read = bench.manager.generation()
    bench.manager.set_circuits(pairs(SWAPPED), who="red", expect=read)
    with pytest.raises(ConflictError) as refused:
        bench.manager.set_circuits(pairs(PORTS[:6]), who="blue", expect=read)
    text = str(refused.value)
    assert f"generation {bench.manager.generation()}, not {read}" in text
    assert f"red moved g0 from {PORTS[0]} to {PORTS[4]}" in text
    assert f"g4 from {PORTS[4]} to {PORTS[0]}" in text
    assert bench.right(SWAPPED)


def test_a_dry_run_is_refused_too_and_changes_no_generation(bench: Bench) -> None:
    read = bench.manager.generation()
    shown = bench.manager.set_circuits(
        pairs(SWAPPED), who="red", dry_run=True, expect=read
    )
    assert (shown.generation, bench.manager.generation()) == (read, read)
    with pytest.raises(ConflictError):
        bench.manager.set_circuits(
            pairs(SWAPPED), who="red", dry_run=True, expect=read - 1
        )


def test_what_was_changed_at_the_switch_is_noticed(bench: Bench) -> None:
    read = bench.manager.generation()
    bench.driver.stand -= {sorted(bench.driver.stand)[0]}
    with pytest.raises(ConflictError, match="not by a client of this controller"):
        bench.manager.set_circuits(pairs(SWAPPED), who="red", expect=read)


def test_the_answer_of_a_change_is_what_the_next_one_expects(bench: Bench) -> None:
    made = bench.manager.set_circuits(pairs(SWAPPED), who="red")
    again = bench.manager.set_circuits(
        pairs(PORTS[:6]), who="red", expect=made.generation
    )
    assert again.applied
    assert bench.right(PORTS[:6])


def test_the_event_has_the_gpus_and_the_generation(bench: Bench) -> None:
    events = bench.bus.subscribe()
    bench.set(SWAPPED)
    (event,) = (event for event in events.take() if event["event"] == "circuits")
    assert event["generation"] == bench.manager.generation()
    assert event["gpus"] == {
        "g0": (str(PORTS[0]), str(PORTS[4])),
        "g4": (str(PORTS[4]), str(PORTS[0])),
    }


def test_a_refused_change_is_told_apart(bench: Bench) -> None:
    events = bench.bus.subscribe()
    bench.driver.refuse_add = True
    bench.set(SWAPPED)
    (event,) = (event for event in events.take() if event["event"] == "circuits")
    assert event["outcome"] != "done"


def test_two_that_read_and_write_lose_nothing(bench: Bench) -> None:
    """Each swaps its own two GPUs twenty times over; in the end each has swapped them so often."""
    lost: list[str] = []
    ended: list[str] = []
    refusals: list[tuple[str, str]] = []

    def swap(one: int, other: int, who: str) -> None:
        done = 0
        while done < 20:
            generation, cross_connects = bench.manager.light()
            now = dict(circuit_pairs(FABRIC, cross_connects))
            a, b = now[GPUS[one]], now[GPUS[other]]
            if (a, b) != ((PORTS[one], PORTS[other])[:: 1 if done % 2 == 0 else -1]):
                lost.append(f"{who}: {a} {b} after {done}")
                return
            now[GPUS[one]], now[GPUS[other]] = b, a
            try:
                bench.manager.set_circuits(now.items(), who=who, expect=generation)
            except ConflictError as error:
                refusals.append((who, str(error)))
                continue
            done += 1
        ended.append(who)

    threads = [
        threading.Thread(target=swap, args=args)
        for args in ((0, 4, "red"), (1, 5, "blue"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert (lost, sorted(ended)) == ([], ["blue", "red"])
    assert bench.right(PORTS[:6])
    # Whoever was refused reads who else has changed the light.
    for who, text in refusals:
        assert f"{'blue' if who == 'red' else 'red'} moved" in text


def test_generations_grow_over_restarts(bench: Bench) -> None:
    before = bench.manager.generation()
    bench.restart(first_generation=EACH_START)
    assert bench.manager.generation() > EACH_START > before


@given(
    places=st.permutations(range(len(PORTS))),
    others=st.permutations(range(len(PORTS))),
    some=st.lists(st.integers(0, 5), unique=True, max_size=4),
)
def test_altered_circuits_are_those_added_and_the_rest(
    places: list[int], others: list[int], some: list[int]
) -> None:
    now = dict(pairs([PORTS[place] for place in places[:6]]))
    targets = dict(
        zip((GPUS[index] for index in some), (PORTS[p] for p in others), strict=False)
    )
    rest = {gpu: port for gpu, port in now.items() if gpu not in targets}
    add = [(gpu.node, str(port)) for gpu, port in targets.items()]
    before = {
        name: frozenset(CrossConnect(xc.ingress, xc.egress) for xc in group)
        for name, group in light([now[gpu] for gpu in GPUS]).items()
    }
    if set(rest.values()) & set(targets.values()):
        with pytest.raises(ConflictError, match="is in use"):
            altered(FABRIC, before, add, [])
        return
    changed = altered(FABRIC, before, add, [])
    after = {
        name: carried_after(group, changed[name]) if name in changed else group
        for name, group in before.items()
    }
    assert dict(circuit_pairs(FABRIC, after)) == rest | targets


def test_any_free_port_of_a_switch_and_what_is_removed_is_free(bench: Bench) -> None:
    # All ports of the first switch are lit, until g0 leaves it.
    full = PORTS[0].node
    first = [port for port in PORTS if port.node == full]
    bench.set([*first, *(port for port in PORTS if port.node != full)][:6])
    on_first = len(first)
    with pytest.raises(ConflictError, match=f"{full} has no free port for g5"):
        bench.manager.alter_circuits([("g5", full)], [], who="test")
    bench.manager.alter_circuits([("g5", full)], [("g0", str(first[0]))], who="test")
    now = dict(circuit_pairs(FABRIC, bench.manager.cross_connects()))
    assert now[GPUS[5]] == first[0]
    assert GPUS[0] not in now
    assert len(now) == 5
    assert on_first < 6


def test_a_circuit_that_is_at_the_switch_already_stays(bench: Bench) -> None:
    places = list(PORTS[:6])
    switch = places[1].node
    # The first port of the switch is free, and g1 is at the second.
    gone = [("g0", str(places[0]))]
    bench.manager.alter_circuits([], gone, who="test")
    before = bench.manager.generation()
    bench.manager.alter_circuits([("g1", switch)], [], who="test")
    assert bench.manager.generation() == before
    now = dict(circuit_pairs(FABRIC, bench.manager.cross_connects()))
    assert now[GPUS[1]] == places[1]


def test_what_cannot_be_altered_names_the_entry(bench: Bench) -> None:
    for add, remove, words in (
        ([], [("g0", str(PORTS[5]))], r"remove\[0\]: there is no circuit from g0 to"),
        ([("g0", str(PORTS[1]))], [], r"add\[0\]: .* is in use"),
    ):
        with pytest.raises(ConflictError, match=words):
            bench.manager.alter_circuits(add, remove, who="test")
    switch = PORTS[0].node
    for pair, words in (
        (("g0", "nosuch:1"), r"add\[0\]: this fabric has no port nosuch:1"),
        (("nosuch", switch), r"add\[0\]: this fabric has no port nosuch"),
        (("g0:7", switch), r"add\[0\]: this fabric has no port g0:7"),
        (("g0", "g0"), r"add\[0\]: circuit g0:0-g0:0: both ends are one port"),
    ):
        with pytest.raises(InvalidError, match=words):
            bench.manager.alter_circuits([pair], [], who="test")
    assert bench.right(PORTS[:6])


@pytest.mark.parametrize(
    ("headers", "bodies", "generation"),
    [
        (None, (None, None), None),
        (["*"], (None,), None),
        (['"17"'], (None,), 17),
        (['"17"', '"17"'], (None,), 17),
        (['W/"17"'], (17, None), 17),
        (None, (None, 4), 4),
    ],
)
def test_the_expected_generation(
    headers: list[str] | None, bodies: tuple[int | None, ...], generation: int | None
) -> None:
    assert expected(headers, *bodies) == generation


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        (['"17"'], "different generations"),
        (['"18"', '"17"'], "different generations"),
        (['"18", "17"'], 'If-Match: "18", "17" is not one ETag, such as "17"'),
        (["18"], 'If-Match: 18 is not one ETag, such as "17"'),
        ([""], "is not one ETag"),
    ],
)
def test_other_than_one_expected_generation_is_refused(
    headers: list[str], words: str
) -> None:
    with pytest.raises(InvalidError, match=words):
        expected(headers, 18)


def test_a_generation_that_is_yet_to_come_is_named(bench: Bench) -> None:
    later = bench.manager.generation() + 1
    with pytest.raises(ConflictError, match=f"has not been of generation {later}"):
        bench.manager.set_circuits(pairs(SWAPPED), who="red", expect=later)


@pytest.mark.parametrize("value", [True, "1", 1.5])
@pytest.mark.parametrize(
    ("body", "key"),
    [
        (ClaimRequest, "count"),
        (LightRequest, "gpus"),
        (CircuitsPatch, "expect"),
    ],
)
def test_only_a_number_is_a_number(
    body: type[BaseModel], key: str, value: object
) -> None:
    named = {"name": "a"} if body is ClaimRequest else {}
    body.model_validate({**named, key: 1})
    with pytest.raises(ValidationError, match=key):
        body.model_validate({**named, key: value})


def test_a_gpu_that_goes_dark_has_moved() -> None:
    before = {PORTS[0]: GPUS[0], PORTS[1]: None}
    assert moved_gpus(before, {PORTS[0]: None, PORTS[1]: None}) == {
        "g0": (str(PORTS[0]), None)
    }
    assert moved_gpus(before, before) == {}
