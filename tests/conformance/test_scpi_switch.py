"""The driver of SCPI and its emulated switches, with light that is packets, and with wavelengths."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import (
    OpticalError,
    PortBusy,
    PortClash,
    ProtocolError,
    Unsupported,
)
from ringlight.controller.optical.registry import make_driver
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.testbed.rigs.emulated import HOSTS, SIZE, ScpiRig, WssRig
from ringlight.testbed.rigs.network import Stream
from ringlight.testbed.rigs.rig import opened
from tests.drivers import converge

pytestmark = [pytest.mark.root, pytest.mark.drivers]


@pytest.fixture(
    scope="class",
    params=[pytest.param(ScpiRig, id="scpi"), pytest.param(WssRig, id="scpi-wss")],
)
def rig(request: pytest.FixtureRequest) -> Iterator[ScpiRig]:
    made: ScpiRig = request.param()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def driver(rig: ScpiRig) -> Iterator[OpticalSwitchDriver]:
    """An open driver of a switch without cross-connects."""
    with opened(rig) as made:
        yield made


def wait_until(when_s: float) -> None:
    """A switch whose process was held up is later than it declares; monotonic seconds."""
    time.sleep(max(0.0, when_s - time.monotonic()))


def wait_for_rest(rig: ScpiRig) -> None:
    """Wait until packets that were sent before have arrived."""
    deadline = time.monotonic() + 5
    counts: list[int] = []
    while counts != (now := [host.nic_received() for host in rig.hosts.values()]):
        assert time.monotonic() < deadline, "packets keep coming"
        counts = now
        time.sleep(0.1)


class TestScpiSwitch:
    @given(data=st.data())
    @settings(
        max_examples=12,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
        ],
    )
    def test_what_stands_is_what_was_asked_for(
        self, rig: ScpiRig, driver: OpticalSwitchDriver, data: st.DataObject
    ) -> None:
        rig.change(driver, (), Mode.REPLACE, settle=False)
        model: set[CrossConnect] = set()
        for _ in range(data.draw(st.integers(1, 4))):
            mode = data.draw(st.sampled_from(Mode))
            ingresses = data.draw(
                st.lists(st.integers(1, SIZE), unique=True, max_size=SIZE - 1)
            )
            egresses = data.draw(st.permutations(range(1, SIZE)))
            target = {rig.xc(a, b) for a, b in zip(ingresses, egresses, strict=False)}
            ports = {port for xc in target for port in (xc.ingress, xc.egress)}
            in_the_way = {
                xc for xc in model - target if xc.ingress in ports or xc.egress in ports
            }
            if mode is Mode.SAFE and in_the_way:
                with pytest.raises(PortBusy):
                    rig.change(driver, target, mode)
            else:
                rig.change(driver, target, mode, settle=False)
                model = (
                    target if mode is Mode.REPLACE else (model - in_the_way) | target
                )
            assert rig.truth() == model == rig.standing(driver)

    def test_a_circuit_that_stays_loses_nothing_while_others_move(
        self, rig: ScpiRig, driver: OpticalSwitchDriver
    ) -> None:
        kept = rig.xc(1, 2)
        rig.change(driver, [kept, rig.xc(3, 4)])
        wait_until(rig.lit_since(kept))
        with Stream(rig.hosts[1], 0.003) as stream:
            stream.wait(20)
            rig.change(driver, [rig.xc(3, 5), rig.xc(4, 3)])
            stream.wait(20)
        wait_for_rest(rig)
        sent = list(range(len(stream.sent)))
        assert [host.received(stream) for host in rig.hosts.values()] == [
            [],
            sent,
            [],
            [],
            [],
        ]
        assert rig.lit_since(kept) < stream.sent[0]


@pytest.mark.parametrize(
    "rig", [pytest.param(WssRig, id="scpi-wss")], indirect=True, scope="class"
)
class TestWavelengthSelectiveSwitch:
    """What a driver and its switch do with wavelengths, beyond the class above on one wavelength."""

    @pytest.fixture(autouse=True)
    def tuned(self, rig: WssRig) -> None:
        for port in range(1, HOSTS + 1):
            rig.tune(port, rig.wavelength)

    def test_the_colour_decides_where_light_goes(
        self, rig: WssRig, driver: OpticalSwitchDriver
    ) -> None:
        assert driver.capabilities().wavelengths == rig.wavelengths
        wanted = [CrossConnect(1, SIZE + 2, 1), CrossConnect(1, SIZE + 3, 2)]
        converge(driver, wanted)
        assert len(rig.writes()) == 1
        wait_until(max(rig.lit_since(one) for one in wanted))
        arrived = []
        for colour in (1, 2, 3):
            rig.tune(1, colour)
            with Stream(rig.hosts[1]) as stream:
                stream.wait(20)
            wait_for_rest(rig)
            sent = list(range(len(stream.sent)))
            arrived.append(
                [port for port in (2, 3) if rig.hosts[port].received(stream) == sent]
            )
        assert arrived == [[2], [3], []]

    def test_every_pair_at_once(self, rig: WssRig, driver: OpticalSwitchDriver) -> None:
        wanted = {
            CrossConnect(i, SIZE + j, (j - i) % SIZE)
            for i in range(1, SIZE)
            for j in range(1, SIZE)
            if i != j
        }
        converge(driver, wanted)
        assert len(rig.writes()) == 1
        assert rig.truth() == wanted == set(driver.snapshot().cross_connects)
        again = converge(driver, wanted, Mode.REPLACE)
        assert not again.plan
        converge(driver, (), delete=[1])
        assert rig.truth() == {one for one in wanted if one.ingress != 1}

    def test_one_wavelength_changes_and_the_others_stay(
        self, rig: WssRig, driver: OpticalSwitchDriver
    ) -> None:
        kept = [
            CrossConnect(1, SIZE + 2, 2),
            CrossConnect(3, SIZE + 2, 4),
            CrossConnect(1, SIZE + 4, 5),
        ]
        converge(driver, [*kept, CrossConnect(1, SIZE + 5, 6)])
        since = [rig.lit_since(one) for one in kept]
        wait_until(max(since))
        with Stream(rig.hosts[1]) as stream:
            stream.wait(20)
            result = converge(driver, [CrossConnect(3, SIZE + 5, 6)])
            stream.wait(20)
        assert rig.hosts[2].received(stream, len(stream.sent) - 1) == list(
            range(len(stream.sent))
        )
        assert [rig.lit_since(one) for one in kept] == since
        assert rig.truth() == {*kept, CrossConnect(3, SIZE + 5, 6)}
        # Only the one that had to go was dark.
        assert {(r.ingress, r.wavelength) for r in result.results if r.t_dark} == {
            (1, 6),
            (3, 6),
        }

    @pytest.mark.parametrize(
        ("wanted", "error"),
        [
            ([CrossConnect(1, SIZE + 2, 1), CrossConnect(3, SIZE + 2, 1)], PortClash),
            ([CrossConnect(1, SIZE + 2, 1), CrossConnect(1, SIZE + 3, 1)], PortClash),
            ([CrossConnect(1, SIZE + 2)], Unsupported),
            ([CrossConnect(1, SIZE + 2, SIZE)], Unsupported),
        ],
    )
    def test_bad_requests_write_nothing(
        self,
        rig: WssRig,
        driver: OpticalSwitchDriver,
        wanted: list[CrossConnect],
        error: type[OpticalError],
    ) -> None:
        with pytest.raises(error):
            converge(driver, wanted)
        assert rig.writes() == []

    def test_what_the_fabric_says_of_wavelengths_is_checked(self, rig: WssRig) -> None:
        entry = {"driver": "scpi", "address": rig.address, "wavelengths": SIZE + 1}
        other = make_driver("ocs0", entry, SIZE)
        with pytest.raises(
            ProtocolError,
            match=f"tells {SIZE} wavelengths apart, the fabric says {SIZE + 1}",
        ):
            other.open()
        other.close()
