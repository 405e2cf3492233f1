"""What tests have to know of this extension's scenarios."""

from __future__ import annotations

from tests.scenario_notes import Notes

NOTES = {
    "own_algorithm": Notes(
        arms=("all-pairs",),
        small={
            "jobs.train.workload.iterations": 1,
            "jobs.train.workload.size": "20 MB",
        },
    ),
}
