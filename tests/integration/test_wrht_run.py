"""A comparison over rings of wavelengths from the command line to the run folder, on real labs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.runner.progress import Reporter
from scenarios.comparison import Comparison, load
from scenarios.simulated import SimulationOptions, simulate
from tests.integration.test_run import RunningCommand, assert_gone, running_command

pytestmark = [pytest.mark.root, pytest.mark.alone]

MINI = Path(__file__).parents[1] / "data" / "mini_wrht.yaml"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningCommand]:
    with running_command(tmp_path / "runs", "--runtime", "namespace", scenario=MINI) as command:
        yield command


def test_a_comparison_over_rings_end_to_end(running: RunningCommand, tmp_path: Path) -> None:
    code, output = running.end()
    assert code == 0, "\n".join(running.lines)
    labs = running.labs()
    assert len(labs) == 2
    for lab in labs:
        assert_gone(lab)
    result = json.loads(output)
    assert result["complete"] is True
    assert result["comparison"]["parameters_identical"] is True
    # On each ring each node's wavelength both ways round.
    assert len(result["fidelity"]["links"]) == 2 * 2 * 5

    found = result["fabrics"]["wrht"]
    assert found["parameters_identical"] is True
    assert found["payload"]["lost_bytes"] == 0
    ring = found["ring"]
    assert ring["set_ups_per_allreduce"] == 4
    # The light of the very first step is there before the release.
    assert 0 <= 4 * 4 - ring["set_ups"] <= 1
    assert ring["set_up_ms"]["p50"] > ring["declared_ms"] == pytest.approx(0.1)
    for counter in ("misdirected", "unrouted", "collisions"):
        assert found["light"][counter] == 0
    assert found["light"]["light_tx_bytes"] > 4 * 8 * 255_572

    found = result["fabrics"]["each"]
    assert found["parameters_identical"] is True
    ring = found["ring"]
    # Four iterations of eight steps, though its light is the same in all of them.
    assert (ring["set_ups_per_allreduce"], ring["set_ups"]) == (8, 4 * 8)
    assert ring["set_up_ms"]["p50"] > ring["declared_ms"] == pytest.approx(0.1)
    for counter in ("misdirected", "unrouted", "collisions"):
        assert found["light"][counter] == 0

    (folder,) = (tmp_path / "runs").iterdir()
    for plot in ("ring-wrht.png", "allreduce.svg"):
        assert (folder / "plots" / plot).stat().st_size > 0
    comparison = load(MINI)
    assert isinstance(comparison, Comparison)
    _, simulated = simulate(comparison, SimulationOptions(tmp_path / "simulated"), Reporter())
    for name, found in result["fabrics"].items():
        # A machine that tests meanwhile is slower than virtual time, and never quicker than the light allows.
        other = simulated["fabrics"][name]
        assert other["iteration_s"] * 0.9 < found["iteration_s"]
    # Not so where light is set anew in each step: the controller's own time for it is not simulated.
    measured, computed = (side["fabrics"]["wrht"]["iteration_s"] for side in (result, simulated))
    assert measured < 3 * computed
