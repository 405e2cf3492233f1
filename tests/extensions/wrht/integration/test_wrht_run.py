"""A comparison over rings of wavelengths from the command line to the run folder, on real labs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.runner.command import carry_out_experiment, load_checked
from tests.integration.figures import Figures
from tests.integration.test_run import RunningCommand, assert_gone, running_command

pytestmark = [pytest.mark.root, pytest.mark.alone]

MINI = Path(__file__).parents[1] / "data" / "mini_wrht.yaml"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningCommand]:
    with running_command(
        tmp_path / "runs", "--runtime", "namespace", scenario=MINI
    ) as command:
        yield command


def test_a_comparison_over_rings_end_to_end(
    running: RunningCommand, tmp_path: Path
) -> None:
    code, output = running.end()
    assert code == 0, "\n".join(running.lines)
    labs = running.labs()
    assert len(labs) == 2
    for lab in labs:
        assert_gone(lab)
    result = json.loads(output)
    assert result["complete"] is True
    found = Figures(result)
    found.assert_exact(2)
    # On each ring each node's wavelength both ways round.
    assert len(found.all("link_rate")) == 2 * 2 * 5

    for arm, fabric in (("wrht", "fabric kept"), ("each", "fabric each")):
        assert found.of(arm, "run", "payload_lost") == 0
        declared_s = found.of(arm, fabric, "setup_declared")
        assert (
            found.number(arm, fabric, "setup_p50") > declared_s == pytest.approx(0.1e-3)
        )
        for counter in ("misdirected", "unrouted", "collisions"):
            assert found.of(arm, fabric, counter) == 0
    assert found.of("wrht", "fabric kept", "set_ups_per_allreduce") == 4
    # The light of the very first step is there before the release.
    assert 0 <= 4 * 4 - found.number("wrht", "fabric kept", "set_ups") <= 1
    assert found.number("wrht", "fabric kept", "light_tx_bytes") > 4 * 8 * 255_572
    # Four iterations of eight steps, though its light is the same in all of them.
    assert found.of("each", "fabric each", "set_ups_per_allreduce") == 8
    assert found.of("each", "fabric each", "set_ups") == 4 * 8

    _, simulated = carry_out_experiment(
        load_checked(MINI), SimulationBackend(), tmp_path / "simulated"
    )
    other = Figures(simulated)
    measured, computed = (
        {arm: figures.number(arm, "job train", "iteration") for arm in ("wrht", "each")}
        for figures in (found, other)
    )
    for arm in measured:
        # A machine that tests meanwhile is slower than virtual time, and never quicker than the light allows.
        assert computed[arm] * 0.9 < measured[arm]
    # Not so where light is set anew in each step: the controller's own time for it is not simulated.
    assert measured["wrht"] < 3 * computed["wrht"]
