"""What a run of the regrouping kind decides by itself, and what it reads back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from experiments.backends.protocol import BackendError
from experiments.language.text import ScenarioError
from scenarios.records import read_runs
from scenarios.runner import _LiveRegroup, plans
from scenarios.schema import Scenario, load_scenario
from scenarios.watch import Watch
from tests.synthetic import Synthesis, synthesize

BUNDLED = Path(__file__).parents[2] / "scenarios" / "disaggregation.yaml"


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario(BUNDLED)


@pytest.fixture(scope="module")
def synthesis(scenario: Scenario) -> Synthesis:
    return synthesize(scenario)


def test_a_job_that_ends_before_its_regroup_is_one_line(scenario: Scenario) -> None:
    plan = next(plan for plan in plans(scenario, 1) if plan.kind == "live")
    regroup = _LiveRegroup(cast(Any, SimpleNamespace(scenario=scenario)), plan)
    # Between two looks all iterations were done, and the jobs had ended.
    regroup(cast(Watch, SimpleNamespace(done=lambda job: 18, left={})))
    with pytest.raises(BackendError, match=r"job red had ended before the regroup after 6 of its iterations"):
        regroup.check_done()


@pytest.mark.parametrize(
    ("gone", "run", "said"),
    [
        ("released", "a-fragmented-1", "run a-fragmented-1 has ended and has no event released"),
        ("regrouped", "live", "run live has ended and has no event regrouped"),
        ("iteration", "live", "run live has ended and has no iteration of rank 0 of job red"),
    ],
)
def test_a_run_that_lacks_an_event_is_one_line(synthesis: Synthesis, gone: str, run: str, said: str) -> None:
    events = [e for e in synthesis.events if (e["event"], e.get("run")) != (gone, run)]
    with pytest.raises(ScenarioError, match=rf"^events\.jsonl: {said}$"):
        read_runs(events)
