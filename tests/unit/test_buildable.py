"""What the testbed cannot build is known before it is started, and a simulation runs it all the same."""

from __future__ import annotations

import pytest

from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.plan import RunPlan

FILE = """
name: pair
description: two GPUs
fabric:
  servers: {{s0: {{gpus: {{g0: a100}}}}, s1: {{gpus: {{g1: a100}}}}}}
  packet_switches: {{tor: {{ports: 4}}}}
  links: [{links}]
training: {{model: resnet50, gradient: 4 MB, compute: 10 ms, batch: 8, iterations: 2, collective: ring}}
jobs: {{j: {{ranks: [g0, g1]}}}}
arms: {{a: {{}}}}
compare: {{baseline: a, metrics: [jct]}}
{more}
"""
TWO_LINKS = '{{ends: ["g0:0", "tor:1"], rate: {rate}}}, {{ends: ["g1:0", "tor:2"], rate: {rate}}}'


def plan_of(links: str, more: str = "") -> RunPlan:
    return parse(FILE.format(links=links, more=more), "pair.yaml").plans[0]


@pytest.mark.parametrize(
    ("links", "more", "problem"),
    [
        (
            "{ends: [g0, g1], rate: 1 Gbit/s}",
            "",
            "fabric.links[0]: g0:0 and g1:0 are both GPUs",
        ),
        (
            TWO_LINKS.format(rate="40 Gbit/s"),
            "",
            "fabric.links[0]: 40 Gbit/s is emulated at 40 Gbit/s",
        ),
        (
            TWO_LINKS.format(rate="1 Mbit/s"),
            "scale: {time: 1, payload: 10}",
            "fabric.links[0]: emulated at 100 kbit/s it cannot be filled",
        ),
    ],
)
def test_a_fabric_that_no_testbed_can_build_is_refused_before_the_run(
    links: str, more: str, problem: str
) -> None:
    plan = plan_of(links, more)
    assert (EmulationBackend("namespace").refuses(plan) or "").startswith(problem)
    assert SimulationBackend().refuses(plan) is None


def test_a_fabric_that_can_be_built_is_not_refused() -> None:
    assert (
        EmulationBackend("namespace").refuses(
            plan_of(TWO_LINKS.format(rate="1 Gbit/s"))
        )
        is None
    )


def test_a_refusal_names_the_key_of_the_file_and_not_a_section_that_the_file_has_not() -> (
    None
):
    plan = plan_of(TWO_LINKS.format(rate="1 Gbit/s"), "tcp: {headers: false}")
    assert (EmulationBackend("namespace").refuses(plan) or "").startswith(
        "tcp.headers:"
    )
