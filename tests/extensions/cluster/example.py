"""What the example of a trace is there to show, whoever carries it out."""

from ringlight.containers.image import ROOT
from ringlight.experiments.record.runs import Run

EXAMPLE = ROOT / "scenarios/examples/trace_jobs.yaml"


def assert_fibre_moved(run: Run) -> None:
    """The third job found one GPU free on each switch, and a fibre was moved for it."""
    moved = [action for action in run.actions if action.result["plan"]["fibres_moved"]]
    assert [action.plan.when.granted for action in moved] == ["j2"]
    assert set(run.circuits) != set(run.circuits_before)
