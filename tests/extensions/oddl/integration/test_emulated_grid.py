"""A grid in labs: an experiment whose agents are killed and disturbed, and faults of agents."""

from __future__ import annotations

import os
import time

import pytest

from ringlight.experiments.record.events import ActionEnded
from ringlight.experiments.record.light_records import Flow, LightCounters
from ringlight.extensions.oddl.agents import OnicEntry, ask
from ringlight.extensions.oddl.records import GridLit
from ringlight.testbed.faults import FaultError
from tests.extensions.oddl.fabrics import grid_fabric
from tests.fault_client import FaultClient
from tests.integration.labs import agent_client, running_testbed
from tests.integration.test_emulation_backend import runs_of
from tests.integration.test_faults import WAIT, Rig

pytestmark = pytest.mark.root

GRID = """
name: grid
description: A grid of four.
scale: {time: 1, payload: 1600}
fabric:
  grids: {n: {rows: 2, columns: 2, gpu: test, rate: 100 Gbit/s, wavelengths: 2, wss: {profile: ideal}}}
training:
  {model: resnet50, gradient: 150 MB, compute: 200 ms, batch: 8, iterations: 8, collective: halving-doubling}
link_test: {duration: 300 ms}
jobs: {red: {gpus: 4}}
arms:
  hurt:
    control: {loss: 0.1, duplicate: 0.1}
    fabric.grids.n.tuning: 300 ms
    events:
      - {name: hit, when: {job: red, iteration: 2}, do: kill, target: agent n1, back_after: 300 ms}
      - {when: {after: hit}, do: disturb, control: {reorder: 0.2}}
  usual: {training.iterations: 3}
"""


def test_a_grid_whose_agent_is_killed_in_a_disturbed_control_network() -> None:
    runs, _ = runs_of(GRID)
    found = runs["hurt"]
    assert [(record.do, record.error) for record in found.of(ActionEnded)] == [
        ("kill", None),
        ("disturb", None),
    ]
    assert found.states("red")[-1] == "SUCCEEDED"
    assert found.exact("red")
    counters = found.of(LightCounters)
    assert [record.moment for record in counters] == ["before", "after"]
    assert counters[0].agents["n1"]["epoch"] != counters[1].agents["n1"]["epoch"]
    assert found.of(GridLit)[0].grid["name"] == "n"
    flows = found.of(Flow)
    assert {flow.gpu for flow in flows} == {f"n{i}" for i in range(4)}
    # Each laser is tuned once: it has one peer in its row or column.
    assert (
        max(flow.t_lit - flow.t_grant for flow in flows if flow.t_lit and flow.t_grant)
        >= 0.3
    )
    assert runs["usual"].exact("red")


def test_a_killed_agent_of_an_o_nic_comes_back_when_it_is_told_to_and_hears_of_a_disturbance() -> (
    None
):
    fabric = grid_fabric(1, 2, rate="1 Gbit/s", wss={"profile": "ideal"})
    with (
        running_testbed(
            fabric, runtime="namespace", command=WAIT, onic_faults=True
        ) as testbed,
        agent_client(testbed) as agent,
        FaultClient(testbed.inventory["agent"]) as faults,
    ):
        rig = Rig(testbed, faults, agent)
        sites = {
            gpu: OnicEntry(gpu, entry["manage"], "", "")
            for gpu, entry in testbed.inventory["onics"].items()
        }

        def told(what: str) -> list[float]:
            return [ask(site, "emulate")["emulate"][what] for site in sites.values()]

        usual = told("tuning_s")
        weaker = rig.done(faults.disturb({"loss": 0.125}))
        disturbed = rig.done(
            faults.disturb({"loss": 0.25, "delay_s": 0.001, "tuning_s": {"n0": 0.5}})
        )
        rig.back(weaker.id)
        assert told("loss") == [0.25, 0.25]
        assert told("tuning_s") == [0.5, usual[1]]
        before = testbed.inventory["onics"]["n0"]["pid"]
        fault = rig.done(faults.kill("agent n0"))
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)
        time.sleep(1.0)
        assert faults.fault(fault.id).state == "in force"
        assert testbed.inventory["onics"]["n0"]["pid"] == before
        assert faults.restore("agent n0") == fault.id
        rig.back(fault.id)
        assert testbed.inventory["onics"]["n0"]["pid"] != before
        assert told("loss") == [0.25, 0.25], "the new agent has not been told"
        assert told("tuning_s") == [0.5, usual[1]]
        faults.restore("control network")
        rig.back(disturbed.id)
        assert (told("loss"), told("tuning_s")) == ([0.0, 0.0], usual)
        with pytest.raises(FaultError, match="agent n0: no fault is in force"):
            faults.restore("agent n0")
        # The lab is taken down with these in force, and leaves nothing.
        for asked in (
            faults.lose("gpu n0"),
            faults.kill("agent n0"),
            faults.kill("switch n-r0"),
        ):
            rig.done(asked)
