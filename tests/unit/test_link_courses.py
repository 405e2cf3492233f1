"""A simulated link that changes by itself, as an extension says it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import yaml

from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import Iteration
from ringlight.experiments.runner.experiment import run_alone
from ringlight.fabric.link_effects import LinkEffect
from ringlight.testbed.simulation.link_courses import Passage

SCENARIO = {
    "name": "two",
    "description": "Two GPUs behind two switches.",
    "scale": {"payload": 100},
    "fabric": {
        "leaf_spine": {
            "leaves": 2,
            "spines": 1,
            "gpus_per_leaf": 1,
            "gpu": "gpu",
            "rate": "10 Gbit/s",
        }
    },
    "training": {"model": "resnet50", "compute": "100 ms", "batch": 4, "iterations": 4},
}


class Halving:
    """Halves the capacity of a link after so many seconds."""

    def __init__(self, passage: Passage, after_s: float) -> None:
        self._passage, self._half = passage, False
        passage.engine.at(after_s, self._halve)

    def _halve(self) -> None:
        self._half = True
        self.settle()

    def wake(self) -> None:
        pass

    def settle(self) -> None:
        for link, capacity in self._passage.links():
            self._passage.engine.set_capacity(
                link, capacity / 2 if self._half else capacity
            )

    def end(self) -> None:
        self._half = False
        self.settle()


@dataclass(frozen=True)
class Halved(LinkEffect):
    after_s: float = 0.0

    @property
    def varies(self) -> bool:
        return True

    def course(self, passage: Passage) -> Halving:
        return Halving(passage, self.after_s)


def sending_s(plan: RunPlan) -> list[float]:
    """Seconds of each all-reduce of rank 0."""
    records = run_alone(SimulationBackend(), plan)[0]
    mine = [
        record
        for record in records
        if isinstance(record, Iteration) and record.rank == 0
    ]
    return [record.allreduce_end - record.compute_end for record in mine]


def test_a_link_that_loses_half_of_its_rate_by_itself_slows_what_comes_then() -> None:
    (plan,) = parse(yaml.safe_dump(SCENARIO), "two.yaml").plans
    before = sending_s(plan)
    links = plan.setting.fabric.links
    trunk = next(link for link in links if str(link.a) == "leaf0:2")
    after_s = 2 * (0.1 + before[0]) + 0.05
    halved = replace(trunk, effects={"halved": Halved(after_s)})
    fabric = replace(
        plan.setting.fabric,
        links=tuple(halved if link is trunk else link for link in links),
    )
    after = sending_s(replace(plan, setting=replace(plan.setting, fabric=fabric)))
    assert after[:2] == pytest.approx(before[:2])
    assert after[2:] == pytest.approx(
        [2 * before_s for before_s in before[2:]], rel=1e-3
    )
