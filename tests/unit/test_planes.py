"""What carries a job's bytes, and that everyone says the same of it: language, backends, models, metrics."""

from __future__ import annotations

import pytest

from ringlight.experiments.analysis.metrics import Context
from ringlight.experiments.analysis.result import analyse
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.record.runs import runs_of
from ringlight.fabric.planes.choice import plane_of
from ringlight.fabric.schema import FabricSpec, build_fabric
from ringlight.fabric.topology import Fabric
from tests.simulated import records_of

ONIC = {"gpu": "t", "rate": "1 Gbit/s"}
#: Three GPUs on a packet switch.
THREE = """
name: three
description: Three GPUs on a packet switch.
scale: {time: 1, payload: 400}
fabric:
  servers: {s0: {gpus: {a: t, b: t, c: t}}}
  packet_switches: {tor: {ports: 3}}
  links:
    - {ends: [a, "tor:1"], rate: 10 Gbit/s}
    - {ends: [b, "tor:2"], rate: 10 Gbit/s}
    - {ends: [c, "tor:3"], rate: 10 Gbit/s}
"""
#: What stands beside them in the same fabric, with which the job has nothing to do.
BESIDE = {
    "nothing": "",
    "grid": "  grids: {n: {rows: 2, columns: 2, gpu: t, rate: 10 Gbit/s}}\n",
}
JOB = """
training: {model: resnet50, compute: 20 ms, batch: 4, iterations: 4, collective: COLLECTIVE}
jobs: {train: {RANKS}}
"""


def experiment(beside: str, ranks: str = "ranks: [a, b, c]", collective: str = "ring") -> Experiment:
    job = JOB.replace("RANKS", ranks).replace("COLLECTIVE", collective)
    return parse(THREE + BESIDE[beside] + job, "three.yaml")


#: Three GPUs on wires, and a grid of four.
MIXED = build_fabric(
    FabricSpec.model_validate(
        {
            "servers": {"s": {"gpus": dict.fromkeys("abc", "t")}},
            "packet_switches": {"tor": {"ports": 3}},
            "links": [
                {"ends": [gpu, f"tor:{n}"], "rate": "1 Gbit/s"} for n, gpu in enumerate("abc", start=1)
            ],
            "grids": {"n": {"rows": 1, "columns": 4, **ONIC}},
        }
    )
)
LIT = build_fabric(FabricSpec.model_validate({"grids": {"n": {"rows": 1, "columns": 3, **ONIC}}}))


@pytest.mark.parametrize(
    ("fabric", "ranks", "found", "nodes"),
    [
        (MIXED, ("a", "b"), "packets", ("a", "b", "c")),
        (MIXED, (), "packets", ("a", "b", "c")),
        (MIXED, ("n3", "n0"), "grid", ("n0", "n1", "n2", "n3")),
        (LIT, (), "grid", ("n0", "n1", "n2")),
    ],
)
def test_a_plane_is_where_the_gpus_are(
    fabric: Fabric, ranks: tuple[str, ...], found: str, nodes: tuple[str, ...]
) -> None:
    plane = plane_of(fabric, ranks)
    assert (plane.kind, plane.nodes) == (found, nodes)


@pytest.mark.parametrize("ranks", [("n0", "a"), ("n0", "n1", "b")])
def test_gpus_in_two_places_have_no_plane(ranks: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"GPU {ranks[-1]} is not on n, as others of the job are"):
        plane_of(MIXED, ranks)


@pytest.mark.parametrize("beside", ["grid"])
@pytest.mark.parametrize("ranks", ["ranks: [a, b, c]", "gpus: 3"])
@pytest.mark.parametrize("collective", ["ring", "recursive-doubling"])
def test_what_stands_beside_a_job_changes_nothing(beside: str, ranks: str, collective: str) -> None:
    alone, found = (experiment(what, ranks, collective) for what in ("nothing", beside))
    for backend in (EmulationBackend(), SimulationBackend()):
        assert backend.refuses(found.plans[0]) is None
    figures = [
        {(row.subject, row.metric): row.value for row in analyse(one, records_of(one), "simulated").rows}
        for one in (alone, found)
    ]
    assert figures[1] == figures[0]
    assert ("job train", "jct_predicted") in figures[1]


@pytest.mark.parametrize("beside", ["grid"])
def test_a_job_beside_light_waits_for_none(beside: str) -> None:
    found = experiment(beside)
    (run,) = runs_of(records_of(found), found.plans)
    assert Context(run, "simulated").predicted["train"].set_ups == 0


def test_a_model_that_cannot_be_made_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a job without a path has no figures of a model; what else goes wrong is not swallowed."""

    def wrong(*_: object) -> None:
        raise ValueError("a is not on ring r")

    found = experiment("nothing")
    (run,) = runs_of(records_of(found), found.plans)
    monkeypatch.setattr("ringlight.experiments.analysis.metrics.predict_jobs", wrong)
    with pytest.raises(ValueError, match="a is not on ring r"):
        Context(run, "simulated").predicted  # noqa: B018
