"""What every optical switch driver must do, on a switch that really switches packets.

The checks are those of `extensions/acceptance/checks`. A new driver's rig is the ``rig`` of its
``DriverKind`` (or in the `conformance.py` of its tests, where it is no part of the product).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.extensions.acceptance.checking import Check
from ringlight.extensions.acceptance.checks import CHECKS, timing
from ringlight.fabric.crossconnect import Mode
from ringlight.testbed.rigs import rigs
from ringlight.testbed.rigs.emulated import SIZE
from ringlight.testbed.rigs.rig import Lacks, Rig, opened
from tests.extensions.acceptance.brought import rigs_of_tests

DRIVERS = [
    pytest.param(rig, id=name) for name, rig in {**rigs(), **rigs_of_tests()}.items()
]

pytestmark = [pytest.mark.root, pytest.mark.drivers]

#: All but one, for which hypothesis draws what it draws at random.
NOT_DRAWN = [
    one for one in CHECKS if one.run is not timing.random_changes_follow_the_model
]


@pytest.fixture(scope="class", params=DRIVERS)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    if why := request.param.missing():
        pytest.skip(why)
    made: Rig = request.param()
    try:
        yield made
    finally:
        made.close()


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
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
        ],
    )
    def test_any_sequence_follows_the_model(
        self, rig: Rig, driver: OpticalSwitchDriver, data: st.DataObject
    ) -> None:
        timing.follow_the_model(
            rig,
            driver,
            data.draw(st.integers(1, 4)),
            mode=lambda: data.draw(st.sampled_from(Mode)),
            inputs=lambda: data.draw(
                st.lists(st.integers(1, SIZE), unique=True, max_size=SIZE - 1)
            ),
            outputs=lambda: data.draw(st.permutations(range(1, SIZE))),
        )
