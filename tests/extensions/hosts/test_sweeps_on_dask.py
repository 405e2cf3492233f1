"""A sweep's runs come out the same on workers of Dask."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ringlight.containers.image import ROOT
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.record.folder import RunFolder
from ringlight.experiments.record.version import code_version
from ringlight.experiments.runner.executor_kinds import executor_of
from ringlight.experiments.runner.experiment import carry_out, choose
from ringlight.experiments.runner.progress import Reporter
from ringlight.extensions.hosts.executor import dask
from tests.unit.test_sweeps import rows, swept

TRACE = """
name: trace
fabric:
  leaf_spine: {leaves: 4, spines: 1, gpus_per_leaf: 8, gpu: g, rate: 100 Gbit/s, oversubscription: 4}
jobs:
  trace:
    generate: {jobs: 40, gap: 50 s, duration: 600 s, sizes: {1: 2, 2: 1, 4: 1, 10: 1}}
    sends: 0.4
arms:
  random: {jobs.trace.placement: random}
  packed: {}
compare: {baseline: packed, metrics: [completion_mean, goodput]}
"""


def test_rows_are_the_same_on_a_local_dask_cluster(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    alone = rows(swept(), tmp_path / "alone", None)
    assert rows(swept(), tmp_path / "spread", dask("local", 2)) == alone


def test_jobs_of_a_trace_are_the_same_on_a_local_dask_cluster(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    pytest.importorskip("ringlight.extensions.cluster")
    over = "sweep: {over: {jobs.trace.sharing: [always, duty]}}\nrepeat: 2\n"
    replayed = parse(TRACE + over, "trace.yaml")
    alone = rows(replayed, tmp_path / "alone", None)
    assert {row.metric for row in alone} >= {"completion_mean"}
    assert rows(replayed, tmp_path / "spread", dask("local", 2)) == alone


def test_a_dask_worker_with_other_code_is_refused_in_one_line(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    other = tmp_path / "other"
    shutil.copytree(
        ROOT / "src/ringlight",
        other / "ringlight",
        ignore=shutil.ignore_patterns("__pycache__", "data"),
    )
    with (other / "ringlight" / "fabric" / "units.py").open("a") as file:
        file.write("# Changed.\n")
    experiment, backend = swept(), SimulationBackend()
    with distributed.LocalCluster(
        n_workers=0, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        command = [
            sys.executable,
            "-m",
            "distributed.cli.dask_worker",
            address,
            "--no-nanny",
            "--no-dashboard",
        ]
        worker = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(other)},
            stderr=subprocess.DEVNULL,
        )
        try:
            with (
                RunFolder.new(tmp_path / "runs", "swept", experiment.text) as folder,
                pytest.raises(
                    BackendError,
                    match=rf"^a worker was refused: .* has other code of ringlight \(\w+\) than the sweep "
                    rf"\({code_version()}\); give it the same. Go on with: --resume {folder.path}$",
                ),
            ):
                carry_out(
                    experiment,
                    choose(experiment, backend),
                    backend,
                    folder,
                    Reporter(),
                    executor_of(f"dask:{address}"),
                )
        finally:
            worker.terminate()
            worker.wait(20)
