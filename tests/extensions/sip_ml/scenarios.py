"""What tests have to know of this extension's scenarios."""

from __future__ import annotations

from collections.abc import Sequence

from ringlight.experiments.record.runs import Run
from ringlight.extensions.sip_ml.records import LightTurns
from tests.scenario_notes import Notes


def _bypassed(runs: Sequence[Run]) -> None:
    lost = {run.plan.arm: run.jobs["red"].last_gpus for run in runs}
    assert lost.get("bypassed") == ("g0", "g1", "g3", "g4", "g5")


def _followed(runs: Sequence[Run]) -> None:
    for run in runs:
        # Set for each phase, light was set again and again; bytes are counted elsewhere.
        turns = [turn for note in run.of(LightTurns) for turn in note.turns]
        assert bool(turns) == (run.plan.arm == "phases")
        assert all(turn["lit"] > turn["set"] for turn in turns if turn["moved"])


NOTES = {
    # mini_zoo and test_sip_ml.py have the same kinds of fabric in small.
    "zoo": Notes(study=True),
    "sip_ml": Notes(
        study=True,
        fewer=("parameters.pieces.value=2", "parameters.bandwidth.value=8 Tbit/s"),
    ),
    "sip_ml_light": Notes(
        slow=True,
        less=(
            "fabrics.*.interconnect.gpus=256",
            "jobs.train.workload.dp=32",
            "jobs.train.workload.iterations=1",
        ),
        # They differ from another in nothing but how often light is divided.
        alike=("ocs-seldom", "ring-seldom"),
    ),
    "hop_ring": Notes(arms=("bypassed",), shown=_bypassed),
    "phases": Notes(
        arms=("phases",),
        # test_divided_run.py shows on the testbed what it shows.
        only_long=True,
        small={
            "fabric.interconnect.gpus": 8,
            "jobs.llm.workload.tp": 2,
            "jobs.llm.workload.iterations": 1,
            "jobs.llm.workload.micro_batch": 1,
            "jobs.llm.workload.sequence": 1024,
        },
        shown=_followed,
        reported="by what each phase of a job sends",
    ),
}
