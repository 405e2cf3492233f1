"""The example of a trace ends as it should, simulated flow by flow as a run without a batch is."""

from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import load
from ringlight.experiments.record.runs import runs_of
from ringlight.experiments.runner.experiment import choose, run_alone
from tests.examples import assert_as_planned
from tests.extensions.cluster.example import EXAMPLE, assert_fibre_moved
from tests.matrix import on_reference


def test_the_example_flow_by_flow() -> None:
    experiment, backend = load(EXAMPLE, scale_for=on_reference), SimulationBackend()
    assert not choose(experiment, backend).refused
    (plan,) = experiment.plans
    (run,) = runs_of(run_alone(backend, plan)[0], [plan])
    assert_as_planned(run)
    assert_fibre_moved(run)
