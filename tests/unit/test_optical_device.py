"""The emulated optical switch's state machine, driven by hand-made time."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.fabric.crossconnect import CrossConnect, PortState, check_matching
from ringlight.fabric.optical_profiles import IDEAL, LCOS, MEMS, PIEZO, profiles
from ringlight.testbed.emulation.optical.commands import (
    NS,
    Admin,
    Clear,
    Command,
    Dark,
    DeviceError,
    Effect,
    Fault,
    Gate,
    Light,
    Rewire,
    SetAdmin,
    SetLabel,
    Stored,
    Ticket,
    TunedEgress,
    Wire,
)
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.light_paths import apply_effects
from ringlight.testbed.emulation.optical.monitors import alarms_of, power_dbm
from ringlight.testbed.emulation.optical.recovery import ModelledPaths

SIZE = 8
LATER = 10 * NS


def ideal() -> OpticalDevice:
    return OpticalDevice(SIZE, IDEAL)


def pairs(device: OpticalDevice) -> dict[int, int]:
    """Egress by ingress, of a switch without wavelengths."""
    assert all(wire.wavelength is None for wire in device.cross_connects())
    return {wire.ingress: wire.egress for wire in device.cross_connects()}


def do(
    device: OpticalDevice, command: Command, now_ns: int = 0
) -> tuple[Ticket, list[Effect]]:
    """Submits a command and gives the device all the time it needs."""
    ticket = device.submit(now_ns, command)
    effects = device.advance(now_ns)
    while not ticket.done:
        assert device.next_ns is not None
        effects += device.advance(device.next_ns)
    return ticket, effects


def refused(device: OpticalDevice, command: Command, fault: Fault, port: int) -> None:
    before = device.cross_connects()
    ticket, effects = do(device, command)
    assert ticket.error is not None
    assert ticket.error.fault is fault
    assert str(port) in str(ticket.error)
    assert effects == []
    assert device.cross_connects() == before


def test_connecting_lights_and_disconnecting_darkens() -> None:
    device = ideal()
    _, effects = do(device, Rewire(((1, 9), (2, 10))), 5)
    assert effects == [Light(1, 9, 5), Light(2, 10, 5)]
    assert pairs(device) == {1: 9, 2: 10}
    assert (device.peer(1), device.peer(9), device.peer(3)) == (9, 1, None)
    _, effects = do(device, Rewire(remove=((1, 9),)))
    assert effects == [Dark(1)]
    assert pairs(device) == {2: 10}


def test_what_exists_already_is_not_touched() -> None:
    device = ideal()
    do(device, Rewire(((1, 9),)))
    _, effects = do(device, Rewire(((1, 9), (2, 10))), 7)
    assert effects == [Light(2, 10, 7)]
    _, effects = do(device, Rewire(((1, 9), (3, 10)), only=True), 9)
    assert effects == [Dark(2), Light(3, 10, 9)]


def test_only_removes_before_it_adds() -> None:
    device = ideal()
    do(device, Rewire(((1, 9), (2, 10))))
    _, effects = do(device, Rewire(((1, 10), (2, 9)), only=True))
    assert [type(effect) for effect in effects] == [Dark, Dark, Light, Light]


@pytest.mark.parametrize(
    ("command", "fault", "port"),
    [
        (Rewire(((1, 10),)), Fault.CONFLICT, 1),
        (Rewire(((2, 9),)), Fault.CONFLICT, 9),
        (Rewire(((3, 11), (4, 11))), Fault.CONFLICT, 11),
        (Rewire(((3, 11), (3, 12)), only=True), Fault.CONFLICT, 3),
        (Rewire(((3, 4),)), Fault.RANGE, 4),
        (Rewire(((9, 1),)), Fault.RANGE, 9),
        (Rewire(((0, 9),)), Fault.RANGE, 0),
        (Rewire(((3, 17),)), Fault.RANGE, 17),
        (Rewire(remove=((2, 9),)), Fault.CONFLICT, 2),
        (Clear((9,), ingress=True), Fault.RANGE, 9),
        (Clear((17,)), Fault.RANGE, 17),
        (SetAdmin((17,), enabled=False), Fault.RANGE, 17),
        (SetLabel(1, "x" * 64), Fault.RANGE, 1),
    ],
)
def test_a_bad_command_changes_nothing(
    command: Command, fault: Fault, port: int
) -> None:
    device = ideal()
    do(device, Rewire(((1, 9),)))
    refused(device, command, fault, port)


def test_a_half_bad_command_changes_nothing() -> None:
    device = ideal()
    do(device, Rewire(((1, 9),)))
    refused(device, Rewire(((2, 10), (3, 9))), Fault.CONFLICT, 9)
    refused(device, Rewire(remove=((1, 9), (2, 10))), Fault.CONFLICT, 2)


def test_the_profile_times_the_light() -> None:
    device = OpticalDevice(SIZE, MEMS, seed=3)
    device.receive(1, light=True)
    ticket = device.submit(0, Rewire(((1, 9),)))
    assert device.advance(0) == []
    due = device.next_ns
    assert due == round((MEMS.command_s + MEMS.command_per_xc_s) * NS)
    assert device.advance(due - 1) == []
    assert not ticket.done
    (light,) = device.advance(due)
    assert isinstance(light, Light)
    least, _, most = MEMS.dark_bounds_s()
    assert due + least * NS <= light.ready_ns <= due + most * NS
    # The switch is tuned before the far receiver has trained.
    assert light.ready_ns - ticket.tuned_ns == pytest.approx(MEMS.retrain_s * NS)
    assert device.port_state(1, ticket.tuned_ns - 1) is PortState.TUNING
    assert power_dbm(device, 9, ticket.tuned_ns - 1) == MEMS.dark_dbm
    assert device.port_state(9, ticket.tuned_ns) is PortState.TUNED
    assert power_dbm(device, 9, ticket.tuned_ns) == pytest.approx(
        -device.mirrors.insertion_loss_db(1, 9), abs=MEMS.repeatability_db
    )
    assert (
        MEMS.loss_min_db <= device.mirrors.insertion_loss_db(1, 9) <= MEMS.loss_max_db
    )


def test_light_that_was_taken_away_late_comes_back_late() -> None:
    """A process that is held up between the decision and its effect makes no dark time shorter."""
    device, paths = OpticalDevice(SIZE, MEMS, seed=3), ModelledPaths(None, "ocs0", SIZE)
    do(device, Rewire(((1, 9),), only=True), 0)
    ticket = device.submit(LATER, Rewire(((1, 10),), only=True))
    device.advance(LATER)
    assert device.next_ns is not None
    decided = device.next_ns
    effects = device.advance(decided)
    (light,) = [effect for effect in effects if isinstance(effect, Light)]
    tuned = ticket.tuned_ns
    # The clock of the test runs on from here; for the device it is the time of the decision.
    began = time.monotonic_ns()
    late = apply_effects(paths, effects, began - NS)
    assert NS <= late <= NS + time.monotonic_ns() - began
    device.put_off(late)
    assert paths.cross_connects()[1, None].ready_ns == light.ready_ns + late
    assert device.mirrors.since_ns(Wire(1, 10)) == light.ready_ns + late
    assert ticket.tuned_ns == tuned + late
    assert device.port_state(10, tuned + late - 1) is PortState.TUNING
    # What darkens nothing is as late as it is.
    new = do(device, Rewire(((2, 11),)), 2 * LATER)[1]
    assert apply_effects(paths, new, time.monotonic_ns() - NS) == 0


def test_commands_are_done_one_after_the_other() -> None:
    device = OpticalDevice(SIZE, MEMS)
    first = device.submit(0, Rewire(((1, 9),)))
    second = device.submit(0, Rewire(((2, 10),)))
    each = round((MEMS.command_s + MEMS.command_per_xc_s) * NS)
    device.advance(0)
    device.advance(each)
    assert (first.done, second.done) == (True, False)
    assert device.next_ns == 2 * each
    device.advance(2 * each)
    assert second.done


def test_a_command_is_checked_against_the_state_at_its_turn() -> None:
    device = OpticalDevice(SIZE, MEMS)
    device.submit(0, Rewire(((1, 9),)))
    device.submit(0, Rewire(only=True))
    third = device.submit(0, Rewire(((2, 9),)))
    while (due := device.next_ns) is not None:
        device.advance(due)
    assert third.error is None
    assert pairs(device) == {2: 9}


def test_dark_times_differ_by_their_jitter_and_repeat_with_the_seed() -> None:
    def ready(seed: int) -> list[int]:
        device = OpticalDevice(SIZE, MEMS, seed)
        _, effects = do(
            device, Rewire(tuple((p, SIZE + p) for p in range(1, SIZE + 1)))
        )
        return [effect.ready_ns for effect in effects if isinstance(effect, Light)]

    assert ready(1) == ready(1) != ready(2)
    assert len(set(ready(1))) == SIZE


def test_a_disabled_port_blocks_light_but_keeps_what_was_meant() -> None:
    device = OpticalDevice(SIZE, MEMS)
    device.receive(1, light=True)
    do(device, Rewire(((1, 9),)))
    _, effects = do(device, SetAdmin((9,), enabled=False), LATER)
    assert effects == [Gate(9, Admin.DISABLED)]
    assert pairs(device) == {1: 9}
    assert (
        device.port_state(1, 2 * LATER)
        is device.port_state(9, 2 * LATER)
        is PortState.BLOCKED
    )
    assert power_dbm(device, 9, 2 * LATER) == MEMS.dark_dbm
    ticket, effects = do(device, SetAdmin((9,), enabled=True), 2 * LATER)
    # Dark first, then open: light must not flash through before it is tuned anew.
    assert [type(effect) for effect in effects] == [Light, Gate]
    assert device.port_state(9, ticket.tuned_ns - 1) is PortState.TUNING
    assert device.port_state(9, ticket.tuned_ns) is PortState.TUNED
    refused(device, SetAdmin((99,), enabled=True), Fault.RANGE, 99)


def test_a_disabled_or_failed_port_takes_no_new_cross_connect() -> None:
    device = ideal()
    do(device, SetAdmin((2,), enabled=False))
    assert device.fail(11) == [Gate(11, Admin.FAILED)]
    refused(device, Rewire(((2, 10),)), Fault.CONFLICT, 2)
    refused(device, Rewire(((3, 11),)), Fault.HARDWARE, 11)
    refused(device, SetAdmin((11,), enabled=True), Fault.HARDWARE, 11)
    assert device.port_state(11, 0) is PortState.FAILED


def test_loss_of_signal() -> None:
    device = ideal()
    for faceplate in range(1, SIZE + 1):
        device.receive(faceplate, light=True)
    assert alarms_of(device, 0) == []
    do(device, Rewire(((1, 9),)))
    device.receive(1, light=False)
    assert {(alarm.port, alarm.kind) for alarm in alarms_of(device, 0)} == {
        (1, "LOS"),
        (9, "LOS"),
    }
    device.receive(1, light=True)
    assert alarms_of(device, 0) == []
    device.unplugged(4)
    assert [(alarm.port, alarm.reason) for alarm in alarms_of(device, 0)] == [
        (4, "nothing is plugged in")
    ]
    device.fail(3)
    assert (3, "FAILED") in {(alarm.port, alarm.kind) for alarm in alarms_of(device, 0)}


def test_a_restarted_device_is_the_same_device() -> None:
    device = OpticalDevice(SIZE, MEMS, seed=5)
    device.receive(1, light=True)
    _, effects = do(device, Rewire(((1, 9),)))
    do(device, SetAdmin((3,), enabled=False))
    _, labelled = do(device, SetLabel(1, "g0"))
    assert labelled == [SetLabel(1, "g0")]
    (light,) = effects
    assert isinstance(light, Light)
    memory = Stored(
        {(1, None): TunedEgress(9, light.ready_ns)}, {3: Admin.DISABLED}, {1: "g0"}
    )
    again = OpticalDevice(SIZE, MEMS, seed=5, stored=memory)
    again.receive(1, light=True)
    for now in (light.ready_ns - NS, light.ready_ns + NS):
        assert [again.port_state(p, now) for p in range(1, 17)] == [
            device.port_state(p, now) for p in range(1, 17)
        ]
        assert power_dbm(again, 9, now) == power_dbm(device, 9, now)
    assert (again.admin(3), again.label(1)) == (Admin.DISABLED, "g0")
    refused(again, Rewire(((2, 9),)), Fault.CONFLICT, 9)


def test_an_unknown_port_cannot_be_read() -> None:
    device = ideal()
    for read in (device.peer, device.admin, device.label):
        with pytest.raises(DeviceError, match="no port 17"):
            read(17)


def test_profiles_scale_and_declare() -> None:
    slow = PIEZO.dilated(3)
    assert slow.dark_bounds_s() == pytest.approx(
        [3 * bound for bound in PIEZO.dark_bounds_s()]
    )
    assert slow.loss_typ_db == PIEZO.loss_typ_db
    assert IDEAL.dark_bounds_s(commands=2) == (0, 0, 0)
    assert MEMS.dark_bounds_s(commands=2)[0] == pytest.approx(0.0105 + 0.030)
    for profile in profiles().values():
        declared = profile.declared()
        assert declared["name"] == profile.name
        bounds = [float(declared[f"dark_{which}_s"]) for which in ("min", "typ", "max")]
        assert bounds == sorted(bounds)
    # The whole fabric of 320 ports in the 200 ms that the vendor gives.
    whole = (
        MEMS.command_s + 320 * MEMS.command_per_xc_s + MEMS.dark_s + MEMS.dark_jitter_s
    )
    assert whole == pytest.approx(0.200)


port = st.integers(0, 2 * SIZE + 1)
pair_lists = st.lists(
    st.tuples(st.integers(1, SIZE + 1), st.integers(SIZE, 2 * SIZE)), max_size=5
).map(tuple)
commands = st.one_of(
    st.builds(Rewire, pair_lists),
    st.builds(Rewire, pair_lists, only=st.just(True)),
    st.builds(Rewire, remove=pair_lists),
    st.builds(Rewire, pair_lists, pair_lists),
    st.builds(Clear, st.lists(port, max_size=3).map(tuple), st.booleans()),
    st.just(Rewire(only=True)),
    st.builds(SetAdmin, st.lists(port, max_size=3).map(tuple), st.booleans()),
)


@given(
    st.lists(st.tuples(commands, st.integers(0, 50_000_000)), max_size=30),
    st.sampled_from([IDEAL, MEMS, replace(MEMS, command_s=0)]),
)
def test_any_commands_leave_a_partial_matching_that_the_datapath_shares(
    steps: list[tuple[Command, int]], profile: object
) -> None:
    device = OpticalDevice(SIZE, profile, seed=1)  # type: ignore[arg-type]
    kernel: dict[int, int] = {}
    gates: dict[int, Admin] = {}
    now = 0
    for command, wait in steps:
        before = device.cross_connects()
        ticket = device.submit(now, command)
        now += wait
        due: int | None = now
        while due is not None:
            for effect in device.advance(due):
                match effect:
                    case Light(ingress, egress, ready_ns):
                        assert ready_ns >= due
                        kernel[ingress] = egress
                        # True at every step, not only at the end: no egress is ever fed twice.
                        check_matching(CrossConnect(i, e) for i, e in kernel.items())
                    case Dark(ingress):
                        del kernel[ingress]
                    case Gate(number, admin):
                        gates[number] = admin
            now = max(now, due)
            due = device.next_ns
        assert ticket.done
        assert pairs(device) == dict(sorted(kernel.items()))
        if ticket.error is not None:
            assert device.cross_connects() == before
        for number in range(1, 2 * SIZE + 1):
            assert device.admin(number) is gates.get(number, Admin.ENABLED)


# A wavelength-selective switch


def selective() -> OpticalDevice:
    return OpticalDevice(SIZE, IDEAL, wavelengths=4)


def test_wavelengths_share_ports_without_touching_each_other() -> None:
    device = selective()
    _, effects = do(device, Rewire(((1, 9, 0), (1, 10, 1), (2, 9, 1))), 3)
    assert effects == [Light(1, 9, 3, 0), Light(1, 10, 3, 1), Light(2, 9, 3, 1)]
    assert device.cross_connects() == ((1, 9, 0), (1, 10, 1), (2, 9, 1))
    assert (
        device.peer(1, 1),
        device.peer(9, 1),
        device.peer(9, 0),
        device.peer(9, 2),
    ) == (10, 2, 1, None)
    _, effects = do(device, Rewire(((1, 10, 1), (3, 9, 1)), only=True))
    assert effects == [Dark(1, 0), Dark(2, 1), Light(3, 9, 3, 1)]
    _, effects = do(device, Clear((1,), ingress=True))
    assert effects == [Dark(1, 1)]
    do(device, Rewire(((1, 10, 1), (2, 9, 2), (4, 12, 3))))
    _, effects = do(device, Clear((9, 1, 9, 5)))
    assert effects == [Dark(1, 1), Dark(2, 2), Dark(3, 1)]
    assert device.cross_connects() == ((4, 12, 3),)


def test_one_wavelength_of_a_port_can_be_had_once() -> None:
    device = selective()
    do(device, Rewire(((1, 9, 1),)))
    refused(device, Rewire(((1, 10, 1),)), Fault.CONFLICT, 1)
    refused(device, Rewire(((2, 9, 1),)), Fault.CONFLICT, 9)
    refused(device, Rewire(((2, 10, 2), (2, 11, 2))), Fault.CONFLICT, 2)
    refused(device, Rewire(remove=((1, 9, 2),)), Fault.CONFLICT, 9)
    refused(device, Rewire(((2, 10, 4),)), Fault.RANGE, 4)
    refused(device, Rewire(((2, 10),)), Fault.RANGE, 3)
    refused(ideal(), Rewire(((2, 10, 0),)), Fault.RANGE, 0)


def test_a_disabled_port_blocks_all_its_wavelengths_and_finds_them_again() -> None:
    device = selective()
    do(device, Rewire(((1, 9, 0), (2, 9, 1), (3, 10, 0))))
    do(device, SetAdmin((9,), enabled=False))
    assert device.port_state(9, LATER) is PortState.BLOCKED
    assert device.port_state(1, LATER) is PortState.BLOCKED
    assert device.port_state(10, LATER) is PortState.TUNED
    _, effects = do(device, SetAdmin((9,), enabled=True), 7)
    assert effects == [Light(1, 9, 7, 0), Light(2, 9, 7, 1), Gate(9, Admin.ENABLED)]


def test_power_at_an_egress_with_several_wavelengths() -> None:
    device = OpticalDevice(SIZE, LCOS, wavelengths=4)
    do(device, Rewire(((1, 9, 0), (2, 9, 1))))
    assert power_dbm(device, 9, LATER) == LCOS.dark_dbm
    device.receive(2, True)
    read = power_dbm(device, 9, LATER)
    worst = LCOS.loss_max_db + LCOS.repeatability_db
    assert -worst <= read <= -(LCOS.loss_min_db - LCOS.repeatability_db)
    assert not [alarm for alarm in alarms_of(device, LATER) if alarm.port == 9]


@given(data=st.data())
def test_any_commands_leave_a_matching_per_wavelength(data: st.DataObject) -> None:
    device = selective()
    wire = st.tuples(
        st.integers(1, SIZE), st.integers(SIZE + 1, 2 * SIZE), st.integers(0, 3)
    )
    kernel: dict[tuple[int, int | None], int] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        wires = tuple(data.draw(st.lists(wire, max_size=5)))
        wanted = [Rewire(wires), Rewire(wires, only=True), Rewire(remove=wires)]
        _, effects = do(device, data.draw(st.sampled_from(wanted)))
        for effect in effects:
            if isinstance(effect, Light):
                assert (effect.ingress, effect.wavelength) not in kernel
                kernel[effect.ingress, effect.wavelength] = effect.egress
            else:
                assert isinstance(effect, Dark)
                del kernel[effect.ingress, effect.wavelength]
        check_matching(CrossConnect(*one) for one in device.cross_connects())
        assert {(i, w): e for i, e, w in device.cross_connects()} == kernel
