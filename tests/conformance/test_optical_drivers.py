"""What every optical switch driver must do, on a switch that really switches packets.

The checks are the acceptance kit's (`testbed/acceptance/checks`). A new driver is a
line in ``RIGS`` there (or in ``DRIVERS``, where its rig is no part of the product).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import OpticalError, PortClash, ProtocolError, Unsupported
from ringlight.controller.optical.registry import make_driver
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.testbed.acceptance.changing import converge
from ringlight.testbed.acceptance.checking import Check
from ringlight.testbed.acceptance.checks import CHECKS, timing
from ringlight.testbed.acceptance.checks.life import at_rest
from ringlight.testbed.acceptance.network import Stream
from ringlight.testbed.acceptance.rig import Lacks, Rig
from ringlight.testbed.acceptance.rigs import RIGS
from ringlight.testbed.acceptance.rigs.emulated import HOSTS, SIZE, WssRig
from ringlight.testbed.acceptance.runner import opened
from tests.extensions.polatis.netconf_rig import NetconfRig

DRIVERS = [
    *(pytest.param(rig, id=name) for name, rig in RIGS.items()),
    pytest.param(NetconfRig, id="polatis-netconf"),
]

pytestmark = [pytest.mark.root, pytest.mark.drivers]

#: All but one, for which hypothesis draws what it draws at random.
NOT_DRAWN = [one for one in CHECKS if one.run is not timing.random_changes_follow_the_model]


@pytest.fixture(scope="class", params=DRIVERS)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    if why := request.param.missing():
        pytest.skip(why)
    made: Rig = request.param()
    try:
        yield made
    finally:
        made.close()


def wait_until(when_s: float) -> None:
    """A switch whose process was held up is later than it declares; monotonic seconds."""
    time.sleep(max(0.0, when_s - time.monotonic()))


@pytest.fixture
def driver(rig: Rig) -> Iterator[OpticalSwitchDriver]:
    """An open driver of a switch without cross-connects."""
    with opened(rig) as made:
        yield made


class TestOpticalDriver:
    @pytest.mark.parametrize("check", NOT_DRAWN, ids=lambda one: one.name)
    def test_item(self, rig: Rig, driver: OpticalSwitchDriver, check: Check) -> None:
        try:
            check.run(rig, driver)
        except Lacks as lack:
            pytest.skip(f"this switch lacks {lack}")

    @given(data=st.data())
    @settings(
        max_examples=12,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    def test_any_sequence_follows_the_model(
        self, rig: Rig, driver: OpticalSwitchDriver, data: st.DataObject
    ) -> None:
        timing.follow_the_model(
            rig,
            driver,
            data.draw(st.integers(1, 4)),
            mode=lambda: data.draw(st.sampled_from(Mode)),
            inputs=lambda: data.draw(st.lists(st.integers(1, SIZE), unique=True, max_size=SIZE - 1)),
            outputs=lambda: data.draw(st.permutations(range(1, SIZE))),
        )


@pytest.mark.parametrize("rig", [pytest.param(WssRig, id="scpi-wss")], indirect=True, scope="class")
class TestWavelengthSelectiveSwitch:
    """What a driver and its switch do with wavelengths, beyond the class above on one wavelength."""

    @pytest.fixture(autouse=True)
    def tuned(self, rig: WssRig) -> None:
        for port in range(1, HOSTS + 1):
            rig.tune(port, rig.wavelength)

    def test_the_colour_decides_where_light_goes(self, rig: WssRig, driver: OpticalSwitchDriver) -> None:
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
            at_rest(rig)
            sent = list(range(len(stream.sent)))
            arrived.append([port for port in (2, 3) if rig.hosts[port].received(stream) == sent])
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
        kept = [CrossConnect(1, SIZE + 2, 2), CrossConnect(3, SIZE + 2, 4), CrossConnect(1, SIZE + 4, 5)]
        converge(driver, [*kept, CrossConnect(1, SIZE + 5, 6)])
        since = [rig.lit_since(one) for one in kept]
        wait_until(max(since))
        with Stream(rig.hosts[1]) as stream:
            stream.wait(20)
            result = converge(driver, [CrossConnect(3, SIZE + 5, 6)])
            stream.wait(20)
        assert rig.hosts[2].received(stream, len(stream.sent) - 1) == list(range(len(stream.sent)))
        assert [rig.lit_since(one) for one in kept] == since
        assert rig.truth() == {*kept, CrossConnect(3, SIZE + 5, 6)}
        # Only the one that had to go was dark.
        assert {(r.ingress, r.wavelength) for r in result.results if r.t_dark} == {(1, 6), (3, 6)}

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
        self, rig: WssRig, driver: OpticalSwitchDriver, wanted: list[CrossConnect], error: type[OpticalError]
    ) -> None:
        with pytest.raises(error):
            converge(driver, wanted)
        assert rig.writes() == []

    def test_what_the_fabric_says_of_wavelengths_is_checked(self, rig: WssRig) -> None:
        entry = {"driver": "scpi", "address": rig.address, "wavelengths": SIZE + 1}
        other = make_driver("ocs0", entry, SIZE)
        with pytest.raises(
            ProtocolError, match=f"tells {SIZE} wavelengths apart, the fabric says {SIZE + 1}"
        ):
            other.open()
        other.close()
