"""What averagers' processes tell becomes records, figures of a run, and a section of its page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ringlight.experiments.analysis.result import Analysis, analyse
from ringlight.experiments.analysis.rows import where
from ringlight.experiments.language.expand import Experiment
from ringlight.experiments.record.events import Record, Reference, RunEnded, WorkerDone
from ringlight.extensions.optinc.averager_log import AveragerLog
from ringlight.extensions.optinc.averager_records import AveragersCounted
from tests.simulated import experiment, records_of, the

FABRIC = """
name: averaged
description: Four servers on an averager.
fabric:
  servers: {s0: {gpus: {g0: t, g1: t, g2: t, g3: t}}}
  packet_switches: {tor0: {ports: 4}}
  averagers: {avg0: {ports: 4, bits: 8}}
  links:
    - {ends: [g0, "tor0:1"], rate: 10 Gbit/s}
    - {ends: [g1, "tor0:2"], rate: 10 Gbit/s}
    - {ends: [g2, "tor0:3"], rate: 10 Gbit/s}
    - {ends: [g3, "tor0:4"], rate: 10 Gbit/s}
    - {ends: ["g0:1", "avg0:1"], rate: 10 Gbit/s}
    - {ends: ["g1:1", "avg0:2"], rate: 10 Gbit/s}
    - {ends: ["g2:1", "avg0:3"], rate: 10 Gbit/s}
    - {ends: ["g3:1", "avg0:4"], rate: 10 Gbit/s}
scale: {time: 1, payload: 400}
training: {model: resnet50, compute: 20 ms, batch: 4, iterations: 6, collective: optinc}
"""


def told(**other: Any) -> dict[str, Any]:
    return {
        "pid": 7, "cpu_s": 1.0, "frames": 10, "codes": 1000, "sessions": 1, "resets": 0, "checked": 64,
        "bytes_in": [10, 20], "bytes_out": [30, 40], "bits": 8, "servers": 2, "weights": "exact",
        "errors": [],
        "table": {"inputs": 28561, "wrong": 2, "by": {}, "worst": 0.0, "cpu_s": 0.1},
        "latency_s": {"median": 0.001, "p99": 0.002, "max": 0.003},
    } | other  # fmt: skip


def measured(size: float = 1.01, **of_averager: Any) -> Analysis:
    """The run above with workers that carried ``size`` bytes for each code, and an averager."""
    found = experiment(text=FABRIC)
    return analyse(found, list(_with_averager(found, size, of_averager)), "measured")


def _with_averager(
    found: Experiment, size: float, of_averager: dict[str, Any]
) -> list[Record]:
    job = found.plans[0].jobs[0]
    codes = job.loop.gradient_bytes // 4 * job.iterations
    records = []
    for record in records_of(found):
        if isinstance(record, RunEnded):
            where_ = {"t": record.t, "run": record.run}
            wire = {
                "eth0": [10, 10],
                "eth1": [round(codes * size), round(codes * 0.99)],
            }
            records += [
                WorkerDone(
                    **where_,
                    job=job.name,
                    rank=rank,
                    parameters_sha256="abc",
                    wire_bytes=wire,
                )
                for rank in range(4)
            ]
            records.append(Reference(**where_, job=job.name, sha256="abc", unlike=0.25))
            counters = {"avg0": {"restarted": False} | told(**of_averager)}
            records.append(AveragersCounted(**where_, averagers=counters))
        records.append(record)
    return records


def test_an_averagers_figures_are_apart_from_those_of_its_job() -> None:
    rows = measured().rows
    busy_s = 6 * the(rows, "exchange")
    assert the(rows, "averager_cpu_share") == pytest.approx(100 * 1.0 / busy_s)
    assert the(rows, "averager_latency") == 0.001
    assert the(rows, "averager_inputs") == 28561
    assert the(rows, "averager_inputs_wrong") == 2
    assert the(rows, "averager_checked") == 64
    assert the(rows, "averager_restarts") == 0
    assert the(rows, "answers_unlike_mean") == 25
    assert the(rows, "wire_over_payload") == pytest.approx(1.01, rel=1e-5)
    # A port carries each code once, a quarter of the gradient's bytes.
    assert the(rows, "busbw") == pytest.approx(the(rows, "algbw") / 4)


def test_of_an_averager_that_was_started_again_no_share_of_a_processor_is_claimed() -> (
    None
):
    rows = measured(restarted=True).rows
    assert the(rows, "averager_restarts") == 1
    assert not list(where(rows, metric="averager_cpu_share"))


def test_a_simulation_knows_nothing_of_it() -> None:
    found = experiment(text=FABRIC)
    rows = analyse(found, records_of(found), "simulated").rows
    for metric in ("averager_inputs", "wire_over_payload", "answers_unlike_mean"):
        assert not list(where(rows, metric=metric))


class Status:
    """The status file of an averager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log: AveragerLog | None = None

    def write(self, at_s: float, **other: Any) -> None:
        self.path.write_text(json.dumps(told(**other)))
        os.utime(self.path, (at_s, at_s))


@pytest.mark.parametrize(
    ("pid", "expected"),
    [
        (7, {"cpu_s": 1.5, "frames": 20, "bytes_in": [1, 2], "restarted": False}),
        (8, {"cpu_s": 2.5, "frames": 30, "bytes_in": [11, 22], "restarted": True}),
    ],
)
def test_counters_are_those_of_the_run(
    tmp_path: Path, pid: int, expected: dict[str, Any]
) -> None:
    status = Status(tmp_path / "avg0.json")
    status.write(1.0)
    log = AveragerLog({"avg0": {"status": str(status.path)}})
    status.write(3.0, cpu_s=2.5, frames=30, bytes_in=[11, 22], pid=pid)
    (found,) = log.counted(lambda: 2.0).values()
    assert {key: found[key] for key in expected} == expected
    assert found["table"]["inputs"] == 28561


def test_an_averager_that_is_not_back_has_nothing_and_is_not_waited_for_forever(
    tmp_path: Path,
) -> None:
    times = iter(range(100))
    log = AveragerLog({"avg0": {"status": str(tmp_path / "avg0.json")}})
    assert log.counted(lambda: float(next(times))) == {}
