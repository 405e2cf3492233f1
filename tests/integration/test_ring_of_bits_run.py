"""Rings of 8-bit numbers from the command line to the run folder, on real labs: the bytes on the wire."""

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

MINI = Path(__file__).parents[1] / "data" / "mini_ring_of_bits.yaml"
#: By arm: 2(n - 1)/n, and (n - 1)/n of sums of 8 + log2 n bits and means of 8.
EVEN_AND_RAW = {"n4": (1.5, 1.6875), "n8": (1.75, 2.078125), "n16": (1.875, 2.34375)}


@pytest.fixture
def arms(long: bool) -> list[str]:
    """Sixteen servers only in the long form."""
    return [arm for arm in EVEN_AND_RAW if long or arm != "n16"]


@pytest.fixture
def running(arms: list[str], tmp_path: Path) -> Iterator[RunningCommand]:
    words = [
        "--runtime",
        "namespace",
        *(word for arm in arms for word in ("--arm", arm)),
    ]
    with running_command(tmp_path / "runs", *words, scenario=MINI) as command:
        yield command


def test_bytes_on_the_wire_over_payload(
    running: RunningCommand, arms: list[str], tmp_path: Path
) -> None:
    code, output = running.end()
    assert code == 0, "\n".join(running.lines)
    for lab in running.labs():
        assert_gone(lab)
    result = json.loads(output)
    assert result["complete"] is True
    found = Figures(result)
    found.assert_exact(len(arms))
    _, simulated = carry_out_experiment(
        load_checked(MINI), SimulationBackend(), tmp_path / "simulated"
    )
    other = Figures(simulated)
    for arm in arms:
        even, raw = EVEN_AND_RAW[arm]
        # scales are 1/512 of a payload, as often as these
        assert found.number(
            arm, "job train", "sent_over_payload_even"
        ) == pytest.approx(even, abs=0.02)
        sent = found.number(arm, "job train", "sent_over_payload")
        assert sent == pytest.approx(raw, abs=0.02)
        # headers and acknowledgements
        assert sent < found.number(arm, "job train", "wire_over_payload") < 1.03 * sent
        assert found.of(arm, "run", "payload_lost") == 0
        # a machine that tests meanwhile is slower than virtual time, and never quicker than the links
        assert other.number(arm, "job train", "allreduce") * 0.9 < found.number(
            arm, "job train", "allreduce"
        )
