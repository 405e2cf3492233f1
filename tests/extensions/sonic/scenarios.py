"""What tests have to know of this extension's scenarios."""

from __future__ import annotations

from tests.examples import assert_circuits_moved
from tests.scenario_notes import Notes

NOTES = {
    "sonic_ocs": Notes(
        arms=("regrouped",),
        # The regroup after the tenth must come before the last, also on a busy machine.
        small={"training.iterations": 30},
        shown=assert_circuits_moved,
    ),
}
