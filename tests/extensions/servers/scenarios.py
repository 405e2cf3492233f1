"""What tests have to know of this extension's scenarios."""

from __future__ import annotations

from tests.scenario_notes import Notes

NOTES = {
    "rails": Notes(arms=("two-rings",)),
    "gpu_servers": Notes(arms=()),
}
