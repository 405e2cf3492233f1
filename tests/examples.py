"""What every example must do, whoever carries it out: its jobs end as they should and its events happen."""

from __future__ import annotations

from collections.abc import Sequence

from ringlight.containers.image import ROOT
from ringlight.experiments.language.job_sources import source_of
from ringlight.experiments.language.text import parse_yaml
from ringlight.experiments.record.runs import SUCCEEDED, JobRun, Run
from tests.scenario_notes import notes_of

#: Those that name their jobs; what makes the jobs of others is an extension, which has tests of its own.
EXAMPLES = [
    path
    for path in sorted((ROOT / "scenarios" / "examples").glob("*.yaml"))
    if source_of(parse_yaml(path.read_text(), path.name).get("jobs")) is None
]
#: Those whose size is what they are about.
LARGE = ("two_hundred_fifty_six",)


def assert_as_planned(run: Run) -> None:
    """Every job has trained all its iterations, unless it was to fail; every event came about."""
    for job in run.jobs.values():
        said = f"{run.name}: {job.name} {job.state.lower()}: {job.reason}"
        assert job.state == ("FAILED" if job.plan.may_fail else SUCCEEDED), said
        if job.state == SUCCEEDED:
            assert len(job.by_index) == job.plan.iterations, said
        if job.plan.workload is not None and job.done:
            assert all(done.results_checked for done in job.done.values()), said
    assert [action.plan.name for action in run.actions] == [
        event.name for event in run.plan.events
    ]
    assert [action.error for action in run.actions] == [None] * len(run.actions)
    assert all(action.ended is not None for action in run.actions)


def assert_shown(name: str, runs: Sequence[Run]) -> None:
    """What an example is there to show."""
    if name == "queue":
        (jobs,) = (run.jobs for run in runs)
        assert jobs["first"].end is not None
        # Who needs little waits all the same behind who came first and needs much.
        assert _release(jobs["small"]) >= _release(jobs["wide"]) >= jobs["first"].end
        assert jobs["wide"].end is not None
        assert _release(jobs["last"]) >= jobs["wide"].end
    if name == "spare":
        others = {"swapped": ("g0", "g5", "g3"), "shrunk": ("g0", "g3")}
        for run in runs:
            assert run.jobs["red"].last_gpus == others.get(
                run.plan.arm, ("g0", "g1", "g3")
            )
            assert not run.jobs["blue"].recoveries
    if name in ("dead_switch", "dark_time"):
        assert_circuits_moved(runs)
    notes_of(name).shown(runs)


def assert_circuits_moved(runs: Sequence[Run]) -> None:
    """Circuits moved in each arm but those that leave them where they are."""
    moved = {
        run.plan.arm: set(run.circuits) != set(run.circuits_before) for run in runs
    }
    assert moved == {arm: arm not in ("undisturbed", "apart") for arm in moved}


def _release(job: JobRun) -> float:
    assert job.released is not None
    return job.released
