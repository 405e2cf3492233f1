"""Records for tests: of experiments that were simulated, and then disturbed as a testbed might be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.result import Analysis, analyse, document, label_of
from ringlight.experiments.analysis.rows import Label, Row, where
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.record.events import (
    Iteration,
    Record,
    Reference,
    RunStarted,
    WorkerDone,
    WorkerReady,
)
from ringlight.experiments.record.lab_records import LinkRate
from ringlight.experiments.runner.experiment import choose, run_alone

#: Four GPUs on two switches that are joined by a slower link, and three arms of one or two jobs.
TWO_SWITCHES = """
name: two
description: Two switches.
scale: {time: 1, payload: 400}
fabric:
  servers: {s0: {gpus: {g0: a, g1: a, g2: a}}, s1: {gpus: {g3: a, g4: a, g5: a}}}
  packet_switches: {t0: {ports: 4}, t1: {ports: 4}}
  links:
    - {ends: [g0, "t0:1"], rate: 40 Gbit/s}
    - {ends: [g1, "t0:2"], rate: 40 Gbit/s}
    - {ends: [g2, "t0:3"], rate: 40 Gbit/s}
    - {ends: [g3, "t1:1"], rate: 40 Gbit/s}
    - {ends: [g4, "t1:2"], rate: 40 Gbit/s}
    - {ends: [g5, "t1:3"], rate: 40 Gbit/s}
    - {ends: ["t0:4", "t1:4"], rate: 20 Gbit/s}
training: {model: resnet50, compute: 50 ms, batch: 8, iterations: 6}
jobs: {red: {ranks: [g0, g1]}}
"""

#: Six GPUs on two packet switches that two cables join.
SIX_GPUS = """
name: small
description: Six GPUs on two packet switches.
fabric:
  servers: {s0: {gpus: {g0: t, g1: t, g2: t}}, s1: {gpus: {g3: t, g4: t, g5: t}}}
  packet_switches: {tor0: {ports: 5}, tor1: {ports: 5}}
  paths: even
  links:
    - {ends: [g0, "tor0:1"], rate: 10 Gbit/s}
    - {ends: [g1, "tor0:2"], rate: 10 Gbit/s}
    - {ends: [g2, "tor0:3"], rate: 10 Gbit/s}
    - {ends: [g3, "tor1:1"], rate: 10 Gbit/s}
    - {ends: [g4, "tor1:2"], rate: 10 Gbit/s}
    - {ends: [g5, "tor1:3"], rate: 10 Gbit/s}
    - {ends: ["tor0:4", "tor1:4"], rate: 10 Gbit/s}
    - {ends: ["tor0:5", "tor1:5"], rate: 10 Gbit/s}
scale: {time: 1, payload: 400}
training: {model: resnet50, compute: 20 ms, batch: 4, iterations: 6, collective: ring}
"""


#: Where bundled scenarios and the tests' own are.
FOLDERS = (
    "scenarios",
    "scenarios/examples",
    "tests/data",
)


def bundled(name: str) -> Path:
    """The file of a scenario."""
    return next(
        path for folder in FOLDERS if (path := ROOT / folder / f"{name}.yaml").exists()
    )


def experiment(more: str = "", text: str = TWO_SWITCHES) -> Experiment:
    """``more``: further sections of the file."""
    return parse(text + more, "two.yaml")


def records_of(found: Experiment) -> list[Record]:
    """All records of an experiment in virtual time."""
    backend = SimulationBackend()
    return [
        record
        for plan in choose(found, backend).plans
        for record in run_alone(backend, plan)[0]
    ]


def analysed(more: str = "", label: Label = "simulated") -> Analysis:
    found = experiment(more)
    return analyse(found, records_of(found), label)


def build(
    found: Experiment, records: Sequence[Record], environment: Mapping[str, Any]
) -> dict[str, Any]:
    """The object of result.json."""
    return document(
        analyse(found, records, label_of(environment)), records, environment
    )


def the(rows: Sequence[Row], metric: str, **wanted: Any) -> Any:
    """The value of the only row of a metric that is as wanted."""
    (row,) = where(rows, metric=metric, **{"repeat": None, **wanted})
    return row.value


CONNECTIONS = [{"peer": 1, "local_port": 5, "remote_port": 6}]


def with_workers(records: Sequence[Record], **of_rank_0: Any) -> Iterator[Record]:
    """As if workers had trained: what each began and ended with, and the reference, all in order.

    ``of_rank_0``: what its end says otherwise.
    """
    for record in records:
        yield record
        if isinstance(record, RunStarted):
            for job, gpus in record.jobs.items():
                said: Mapping[str, Any] = {"t": record.t, "run": record.run, "job": job}
                yield Reference(sha256="abc", **said)
                for rank in range(len(gpus)):
                    yield WorkerReady(rank=rank, connections=CONNECTIONS, **said)
                    done = WorkerDone(
                        rank=rank,
                        parameters_sha256="abc",
                        accuracy=0.9,
                        loss_first=2.0,
                        loss_last=0.5,
                        bytes_sent=100,
                        bytes_received=100,
                        retransmits=1,
                        connections=CONNECTIONS,
                        **said,
                    )
                    yield replace(done, **of_rank_0) if rank == 0 else done


def with_links(records: Sequence[Record], ratio: float = 1.0) -> list[Record]:
    """As if one link had been measured before."""
    rate = LinkRate(
        t=0.0,
        fabric="fabric",
        link="a-b",
        direction="to b",
        set_bps=1e6,
        measured_bps=ratio * 1e6,
    )
    return [rate, *records]


def late(records: Sequence[Record], share: float) -> list[Record]:
    """As if every compute timer had woken late by a share of its 50 ms."""
    return [
        replace(record, lateness_s=share * 0.05)
        if isinstance(record, Iteration)
        else record
        for record in records
    ]
