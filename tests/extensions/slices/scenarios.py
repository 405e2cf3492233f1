"""What tests have to know of this extension's scenarios."""

from __future__ import annotations

from tests.examples import assert_circuits_moved
from tests.scenario_notes import Notes

NOTES = {
    "lost_cube": Notes(small={"training.iterations": 3}, shown=assert_circuits_moved),
}
