"""What tests have to know of this extension's scenarios."""

from __future__ import annotations

from tests.scenario_notes import Notes

NOTES = {
    "workload_text": Notes(arms=("thin",), only_long=True),
}
