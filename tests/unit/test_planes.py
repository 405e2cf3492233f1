"""What carries a job's bytes, and that everyone says the same of it: language, backends, models, metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from ringlight.experiments.analysis.metrics import Context
from ringlight.experiments.analysis.result import analyse
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.record.runs import runs_of
from ringlight.fabric.parts import Gpu
from ringlight.fabric.planes import choice
from ringlight.fabric.planes.base import Lighting, Plane
from ringlight.fabric.planes.choice import plane_of
from ringlight.fabric.topology import Fabric
from tests.simulated import records_of

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
JOB = """
training: {model: resnet50, compute: 20 ms, batch: 4, iterations: 4, collective: COLLECTIVE}
jobs: {train: {RANKS}}
"""


def experiment(
    beside: str, ranks: str = "ranks: [a, b, c]", collective: str = "ring"
) -> Experiment:
    """``beside``: lines of the fabric, with which the job has nothing to do."""
    job = JOB.replace("RANKS", ranks).replace("COLLECTIVE", collective)
    return parse(THREE + beside + job, "three.yaml")


@dataclass(frozen=True)
class LampPlane(Plane):
    """A plane that has the GPUs which begin with n."""

    kind: ClassVar[str] = "lamp"
    light: ClassVar[Lighting] = "asked"


def fabric_of(*gpus: str) -> Fabric:
    return Fabric(
        {gpu: Gpu.numbered(gpu, "s", "t", i) for i, gpu in enumerate(gpus)}, {}, {}, ()
    )


@pytest.fixture
def lamps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plane n in each fabric that has GPUs of it."""

    def find(fabric: Fabric) -> list[Plane]:
        nodes = tuple(gpu for gpu in fabric.gpus if gpu.startswith("n"))
        return [LampPlane(fabric, "n", nodes)] if nodes else []

    monkeypatch.setattr(choice, "parts_of_planes", lambda part: {"": find})


#: Three GPUs on wires, and four on a plane with light; and three on such a plane alone.
MIXED, LIT = (
    fabric_of("a", "b", "c", "n0", "n1", "n2", "n3"),
    fabric_of("n0", "n1", "n2"),
)


@pytest.mark.usefixtures("lamps")
@pytest.mark.parametrize(
    ("fabric", "ranks", "found"),
    [
        (MIXED, ("a", "b"), "packets"),
        (MIXED, (), "packets"),
        (MIXED, ("n3", "n0"), "lamp"),
        (LIT, (), "lamp"),
    ],
)
def test_a_plane_is_where_the_gpus_are(
    fabric: Fabric, ranks: tuple[str, ...], found: str
) -> None:
    assert plane_of(fabric, ranks).kind == found


@pytest.mark.usefixtures("lamps")
@pytest.mark.parametrize("ranks", [("n0", "a"), ("n0", "n1", "b")])
def test_gpus_in_two_places_have_no_plane(ranks: tuple[str, ...]) -> None:
    with pytest.raises(
        ValueError, match=f"GPU {ranks[-1]} is not on n, as others of the job are"
    ):
        plane_of(MIXED, ranks)


def check_beside(beside: str, ranks: str, collective: str) -> None:
    """Check that a job has the same figures beside other parts of its fabric, and waits for none of their
    light."""
    alone, found = (experiment(what, ranks, collective) for what in ("", beside))
    for backend in (EmulationBackend(), SimulationBackend()):
        assert backend.refuses(found.plans[0]) is None
    figures = [
        {
            (row.subject, row.metric): row.value
            for row in analyse(one, records_of(one), "simulated").rows
        }
        for one in (alone, found)
    ]
    assert figures[1] == figures[0]
    assert ("job train", "jct_predicted") in figures[1]
    (run,) = runs_of(records_of(found), found.plans)
    assert Context(run, "simulated").predicted["train"].set_ups == 0


def test_a_model_that_cannot_be_made_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a job without a path has no figures of a model; what else goes wrong is not swallowed."""

    def wrong(*_: object) -> None:
        raise ValueError("a is not on ring r")

    found = experiment("")
    (run,) = runs_of(records_of(found), found.plans)
    monkeypatch.setattr("ringlight.experiments.analysis.metrics.predict_jobs", wrong)
    with pytest.raises(ValueError, match="a is not on ring r"):
        Context(run, "simulated").predicted  # noqa: B018
