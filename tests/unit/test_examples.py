"""Every example in virtual time. ``tests/integration/test_examples.py`` has them on the testbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import load
from ringlight.experiments.record.runs import runs_of
from ringlight.experiments.runner.experiment import choose, one_alone
from tests.examples import EXAMPLES, LARGE, assert_as_planned, assert_shown
from tests.matrix import on_reference


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_in_virtual_time(path: Path, long: bool) -> None:
    if path.stem in LARGE and not long:
        pytest.skip("has 256 GPUs; --long does")
    experiment, backend = load(path, scale_for=on_reference), SimulationBackend()
    chosen = choose(experiment, backend)
    assert not chosen.refused
    records = [record for plan in chosen.plans for record in one_alone(backend, plan)[0]]
    runs = runs_of(records, chosen.plans)
    assert [run.plan for run in runs] == list(experiment.plans)
    for run in runs:
        assert_as_planned(run)
    assert_shown(path.stem, runs)
