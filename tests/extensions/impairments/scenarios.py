"""What tests have to know of this extension's scenarios."""

from __future__ import annotations

from tests.scenario_notes import Notes

NOTES = {
    "flap": Notes(arms=("flapping",), small={"training.iterations": 8}),
}
