"""What GPUs send before and after their light moved: all of it, as one figure a port and moment."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringlight.experiments.analysis.machine_faults import SERIES_STEP_S
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, load
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.lab_records import PortRate
from ringlight.experiments.record.runs import runs_of
from ringlight.experiments.report.sections.throughput import mean_throughput
from ringlight.experiments.runner import executors
from ringlight.experiments.runner.command import carry_out_experiment
from ringlight.experiments.runner.experiment import run_alone
from ringlight.experiments.runner.progress import Reporter
from ringlight.fabric.frames import payload_share
from tests.unit.test_cli import MINI


@pytest.fixture(scope="module")
def small() -> Experiment:
    return load(MINI)


@pytest.fixture(scope="module")
def records(small: Experiment) -> list[Record]:
    """Records of the arm whose light moves while its jobs train."""
    (plan,) = small.plans_of(["live"])
    return run_alone(SimulationBackend(), plan)[0]


def test_what_gpus_sent_is_what_their_collectives_send_wherever_they_are(
    small: Experiment, records: list[Record]
) -> None:
    (run,) = runs_of(records, small.plans_of(["live"]))
    rates = [record for record in records if isinstance(record, PortRate)]
    # Light moved: ports have seen several GPUs.
    ports = {(rate.switch, rate.port): set[str | None]() for rate in rates}
    for rate in rates:
        ports[rate.switch, rate.port].add(rate.gpu)
    assert any(len(gpus) > 1 for gpus in ports.values())
    assert set(
        Counter((rate.t, rate.switch, rate.port) for rate in rates).values()
    ) == {1}
    share = payload_share(run.plan.setting.frames.mtu_bytes)
    for job in run.jobs.values():
        times, sent = mean_throughput(run, job, rates)
        # Two ranks of a ring send the gradient once in each iteration.
        bits = 8 * job.plan.loop.gradient_bytes * len(job.by_index) / share
        assert 1e6 * np.sum(sent) * SERIES_STEP_S == pytest.approx(bits, rel=0.02)
        assert len(times) == len(sent)


def test_a_gpu_with_rows_of_two_ports_sent_what_both_received(
    small: Experiment, records: list[Record]
) -> None:
    """As in run folders of earlier versions."""
    (run,) = runs_of(records, small.plans_of(["live"]))
    gpu = run.jobs["red"].gpus[0]

    def row(port: int, rx_bps: float) -> PortRate:
        said = {"switch": "tor0", "gpu": gpu, "peer": f"{gpu}:0", "tx_bps": 0.0}
        return PortRate(
            t=run.released + 0.15, run=run.name, port=port, rx_bps=rx_bps, **said
        )  # type: ignore[arg-type]

    _, sent = mean_throughput(run, run.jobs["red"], [row(1, 8e6), row(2, 0.0)])
    assert sent.tolist() == [8.0]


@pytest.mark.parametrize("forks", [True, False])
def test_the_result_is_known_before_the_report_is_drawn(
    small: Experiment, tmp_path: Path, forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_forks_pay", lambda: forks)
    seen: list[tuple[bool, dict[str, Any]]] = []

    def early(result: dict[str, Any]) -> None:
        (folder,) = tmp_path.iterdir()
        seen.append(((folder / "report.html").exists(), result))

    done, result = carry_out_experiment(
        small,
        SimulationBackend(),
        tmp_path,
        arms=["live"],
        reporter=Reporter(quiet=True),
        early=early,
    )
    assert (done.path / "report.html").exists()
    ((drawn, known),) = seen
    assert known == result
    # Another process may be quicker.
    assert forks or not drawn
