"""The example of flows on the testbed: workers send each over real switches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.record.runs import runs_of
from ringlight.experiments.runner.experiment import run_alone
from ringlight.extensions.flows.metrics import run_times_s
from tests.extensions.flows.test_flow_scenario import EXAMPLE
from tests.integration.test_examples import (
    carried_out,
    nothing_is_made_once_more,
    small,
)

__all__ = ["nothing_is_made_once_more"]
pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


def test_each_flow_takes_as_long_as_simulated(tmp_path: Path) -> None:
    experiment = small(EXAMPLE, {})
    (run,), _ = carried_out(experiment, tmp_path, "namespace", "half")
    backend, plan = SimulationBackend(), run.plan
    (simulated,) = runs_of(run_alone(backend, plan)[0], [plan])
    measured_s, expected_s = run_times_s(run), run_times_s(simulated)
    assert measured_s is not None
    assert expected_s is not None
    assert np.isfinite(measured_s).all()
    # No timed assertion of the house is tighter than three times.
    assert (measured_s > expected_s / 3).all()
    assert (measured_s < expected_s * 3).all()
    # Half of the rate between leaves is what the longest flow between them waits for.
    assert measured_s.argmax() == expected_s.argmax()
