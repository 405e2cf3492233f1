"""What tests have to know of this extension's scenarios."""

from __future__ import annotations

from tests.scenario_notes import Notes

#: The golden files of these tests have it in small.
NOTES = {"wrht": Notes(untried=True)}
