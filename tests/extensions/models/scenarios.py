"""What tests have to know of this extension's scenarios."""

from __future__ import annotations

from tests.scenario_notes import Notes

NOTES = {
    "parallel_16": Notes(
        only_long=True,
        small={
            "scale.time": 1,
            "scale.payload": 20000,
            "fabric.leaf_spine.gpus_per_leaf": 4,
            "jobs.llm.workload.dp": 1,
        },
    ),
}
