"""Light that is divided by demand: emulated switches behind their drivers, and an agent that keeps tables."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.errors import (
    ConflictError,
    ControllerError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from ringlight.controller.jobs.reservation import JOB, Holder, placed, planes_for
from ringlight.controller.optical.registry import make_driver
from ringlight.controller.packets.attachment import lit_circuits
from ringlight.controller.server_agent import AgentClient
from ringlight.extensions.sip_ml.divided.lightpaths import setting_of
from ringlight.extensions.sip_ml.divided.planes import Lightpath
from ringlight.extensions.sip_ml.light import dividing as demand_loop
from ringlight.extensions.sip_ml.light import following_phases
from ringlight.extensions.sip_ml.light.demand import (
    FRAME_BYTES,
    DividedLight,
    left,
    passed,
    stranded,
    tables,
)
from ringlight.extensions.sip_ml.light.divided import DividedProvider
from ringlight.extensions.sip_ml.light.documents import DividedPart
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.keys import plugged
from ringlight.fabric.planes.choice import lit_planes
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.steps import FloatArray
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.optical.commands import Rewire
from ringlight.workloads.graph import Collective, Workload
from ringlight.workloads.graph_writer import Book, Writer
from tests.extensions.sip_ml.scpi_switch import ScpiSwitch
from tests.extensions.sip_ml.standing_agent import StandingAgent
from tests.lights import light_context

WAIT_S = 20.0
AGAIN = {"interval": "20 ms", "dark": "10 ms"}
RANKS = ("g0", "g1", "g2", "g3")
RING = {"workload": "train", "collective": "ring", "gradient_bytes": 4000}


def fabric(**interconnect: object) -> Fabric:
    keys = {"gpus": 4, "gpu": "a100", "rate": "200 Gbit/s"} | interconnect
    return plugged(build_fabric(FabricSpec.model_validate({"interconnect": keys})))


ONCE = fabric(kind="parallel-ocs", switches=2)
PLANES = fabric(kind="parallel-ocs", switches=2, **AGAIN)
WAVES = fabric(kind="demand-ring", wavelength="50 Gbit/s", **AGAIN)


PHASED = fabric(kind="parallel-ocs", switches=2, dark="10 ms", guard="1 ms")
PHASES = {"workload": "graph", "graph": "", "iterations": 2, "light": "phases"}
#: Pairs of each phase of its light.
WITHIN, ACROSS = [(0, 1), (1, 0)], [(2, 3), (3, 2)]
BOTH = [(1, 2), (2, 1)]


def in_turns(_: str) -> Workload:
    """Ranks 0 and 1, beside them 2 and 3; then 1 and 2."""
    book, programs = Book(), []
    within, across, both = (book.group(pairs[0]) for pairs in (WITHIN, ACROSS, BOTH))
    for calls in (1, 2):
        writer = Writer(book)
        for slot in range(calls):
            writer.collective("exchange", Collective("all-reduce", "ring"), 8, slot)
        programs.append(writer.done())
    groups = [[within, -1], [within, both], [across, both], [across, -1]]
    return book.workload("in turns", programs, [0, 1, 1, 0], groups, np.empty((4, 0)))


class Stage:
    """A fabric's switches, its agent, and a :class:`DividedProvider` between them. ``log``: what happened."""

    def __init__(self, made: Fabric, stack: ExitStack) -> None:
        self.fabric = made
        self.agent = StandingAgent(made)
        stack.callback(self.agent.close)
        self.switches = {
            name: ScpiSwitch(switch, lambda name: self.agent.log.append(name))
            for name, switch in made.optical_switches.items()
        }
        for switch in self.switches.values():
            stack.callback(switch.stop)
        entries = {
            switch.name: {
                "driver": switch.driver,
                "address": self.switches[switch.name].address,
                "profile": switch.device.declared(),
                "wavelengths": switch.wavelengths or 0,
            }
            for switch in made.optical_switches.values()
        }
        drivers = {
            name: make_driver(name, entry, made.optical_switches[name].size, None)
            for name, entry in entries.items()
        }
        self.optical = OpticalSite(drivers, entries, EventBus())
        stack.callback(self.optical.close)
        self.client = AgentClient(self.agent.address)
        stack.callback(self.client.close)
        self.stack = stack
        self.site = self.begin()

    def begin(self) -> DividedProvider:
        """A controller's part, as at its start."""
        site = DividedProvider(
            light_context(
                self.fabric, self.optical, agent=self.client, workload=in_turns
            )
        )
        self.stack.callback(site.stop)
        return site

    def plan(
        self,
        wanted: Sequence[str] | int,
        settings: dict[str, Any] = RING,
        holders: Mapping[str, Holder] | None = None,
        name: str | None = None,
    ) -> DividedLight:
        (plane,) = planes_for(self.fabric, wanted, name)
        return self.site.plan(
            plane, placed(plane, wanted, holders or {}, alone=True), settings
        )

    def own(self) -> DividedPart:
        (plane,) = lit_planes(self.fabric)
        own = self.site.document(plane, {}).own
        assert isinstance(own, DividedPart)
        return own

    def light(self, settings: dict[str, Any] = RING) -> Any:
        light = self.plan(RANKS, settings)
        self.site.check(light)
        self.site.light("red", light)
        return light

    def take_over(self, settings: dict[str, Any] = RING) -> Any:
        """What the next controller does, after the end of the one before."""
        self.optical.release("red")
        self.site = self.begin()
        light = self.plan(RANKS, settings)
        self.site.adopt("red", light)
        return light

    def stand(self) -> dict[str, set[CrossConnect]]:
        """What the devices carry."""
        return {
            name: {CrossConnect(*wire) for wire in switch.device.cross_connects()}
            for name, switch in self.switches.items()
        }

    def as_told(self) -> dict[str, set[CrossConnect]]:
        """What the switches must carry for the lightpaths that the O-NICs were told."""
        number = {gpu: index for index, gpu in enumerate(self.fabric.gpus)}
        paths = {
            (number[a], number[b]): tuple(Lightpath(*path) for path in own)
            for (a, b), own in self.agent.lit().items()
        }
        return {
            name: set(group) for name, group in setting_of(self.fabric, paths).items()
        }

    def wait(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, (
                self.agent.log[-20:],
                self.site.troubles(),
            )
            time.sleep(0.005)

    def await_lit(self, *pairs: tuple[str, str]) -> None:
        """Until these pairs and no others have light."""
        self.wait(lambda: self.agent.lit().keys() == set(pairs))

    def decisions(self) -> list[dict[str, Any]]:
        (plane,) = lit_planes(self.fabric)
        return [asdict(one) for one in self.site.changes(plane)]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


# What a job gets


def test_a_job_names_its_gpus_and_has_the_light_alone(stack: ExitStack) -> None:
    stage = Stage(PLANES, stack)
    with pytest.raises(
        InvalidError,
        match=r"^4 GPUs: name them \(ranks\); the light of parallel-ocs is",
    ):
        stage.plan(4)
    with pytest.raises(
        ConflictError, match=r"^the light of parallel-ocs is that of job train$"
    ):
        stage.plan(["g0", "g1"], RING, {"g3": Holder(JOB, "train")})
    with pytest.raises(InvalidError, match=r"^there is no plane moon$"):
        stage.plan(RANKS, name="moon")
    with pytest.raises(InvalidError, match=r"^rank 1: there is no GPU g9$"):
        stage.plan(["g0", "g9"])
    light = stage.plan(["g3", "g1"], name="parallel-ocs")
    assert (light.nodes, light.switches) == (("g3", "g1"), ("q0", "q1"))
    assert (light.interval_s, light.dark_s) == (0.02, 0.01)
    assert light.demand[3, 1] == light.demand[1, 3] == light.demand.sum() / 2 == 4000


def test_times_are_as_emulated(stack: ExitStack) -> None:
    stage = Stage(PLANES, stack)
    stage.site = slow = DividedProvider(
        light_context(PLANES, stage.optical, time_dilation=200.0)
    )
    light = stage.plan(RANKS)
    assert light.interval_s == pytest.approx(4.0)
    assert light.dark_s == pytest.approx(2.0)
    with pytest.raises(UnavailableError, match="names no server agent"):
        slow.light("red", light)


def test_a_link_test_measures_light_that_stands(stack: ExitStack) -> None:
    test = {"workload": "linktest", "linktest": {"to": [1, None]}}
    light = Stage(PLANES, stack).plan(["g0", "g1"], test)
    assert light.interval_s is None


def test_a_degree_that_circuits_set_once_cannot_have_is_told_by_name(
    stack: ExitStack,
) -> None:
    everybody = {
        "workload": "train",
        "collective": "recursive-doubling",
        "gradient_bytes": 4000,
    }
    assert Stage(ONCE, stack).plan(RANKS, everybody)
    one = fabric(kind="parallel-ocs", switches=1)
    with pytest.raises(InvalidError) as caught:
        Stage(one, stack).plan(["g2", "g1", "g3", "g0"], everybody)
    assert str(caught.value) == (
        "job on parallel-ocs: GPU g0 sends to 2 others, and 1 switch joins it to at most 1"
    )


def test_a_fabric_without_divided_light_has_none() -> None:
    spec = {
        "packet_switches": {"t": {"ports": 2}},
        "servers": {"s": {"gpus": {"g0": "x"}}},
        "links": [],
    }
    bare = build_fabric(FabricSpec.model_validate(spec))
    assert planes_for(bare, ["g0"], None) == planes_for(bare, 1, None) == []
    with pytest.raises(InvalidError, match="there is no plane parallel-ocs"):
        planes_for(bare, 1, "parallel-ocs")


def test_what_a_job_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(digest: str) -> FloatArray:
        return np.full((2, 2), float(digest))

    monkeypatch.setattr("ringlight.extensions.sip_ml.light.divided.sent", sent)

    def demand_of(settings: dict[str, Any], ranks: int) -> FloatArray:
        site = DividedProvider(
            light_context(PLANES, OpticalSite({}, {}, EventBus()), workload=str)
        )
        return site.demand_of(settings, ranks, "x")

    assert demand_of({"workload": "graph", "graph": "7"}, 2)[0, 1] == 7
    with pytest.raises(
        InvalidError, match=r"^graph: it is for 2 ranks, and the job has 3$"
    ):
        demand_of({"workload": "graph", "graph": "7"}, 3)
    assert (
        demand_of({"linktest": {"to": [1, None, 0]}, "workload": "linktest"}, 3) > 0
    ).tolist() == [
        [False, True, False],
        [False, False, False],
        [True, False, False],
    ]
    with pytest.raises(InvalidError, match=r"^collective wrong on x: "):
        demand_of({"collective": "wrong"}, 3)


def test_what_is_left_is_posted_and_not_sent() -> None:
    ips = {gpu.name: gpu.ip for gpu in PLANES.gpus.values()}
    traffic = {
        "g0": {
            ips["g1"]: {"posted": 50, "fresh": 20},
            ips["g2"]: {"posted": 9, "fresh": 8},
        },
        # It says that it sends to itself, to nobody's address, and less than it sent.
        "g1": {
            ips["g1"]: {"posted": 5, "fresh": 0},
            "9.9.9.9": {"posted": 5, "fresh": 0},
        },
        "g2": {ips["g0"]: {"posted": 5, "fresh": 6}},
        "g3": {ips["g0"]: {"posted": 5, "fresh": 0}},
    }
    found = left(PLANES, ["g2", "g1", "g0"], traffic)
    assert found[0, 1] == 30
    assert found[0, 2] == 1
    assert found.sum() == 31


def test_what_was_lost_in_the_light_and_goes_round_in_the_dark_asks_for_light() -> None:
    ips = {gpu.name: gpu.ip for gpu in PLANES.gpus.values()}
    nodes = ["g0", "g1", "g2"]

    def told(posted: int, held: int) -> dict[str, dict[str, dict[str, int]]]:
        return {"g0": {ips["g1"]: {"posted": posted, "fresh": 50, "held": held}}}

    found = stranded(PLANES, nodes, told(50, 8), told(50, 7), {(1, 0)})
    assert found[0, 1] == found.sum() == FRAME_BYTES
    # It has light, nothing goes round, it is still to be sent, or nobody knows what was before.
    assert not stranded(PLANES, nodes, told(50, 8), told(50, 7), {(0, 1)}).any()
    assert not stranded(PLANES, nodes, told(50, 7), told(50, 7), set()).any()
    assert not stranded(PLANES, nodes, told(51, 8), told(50, 7), set()).any()
    assert not stranded(PLANES, nodes, told(50, 8), {}, set()).any()


@pytest.mark.parametrize("made", [PLANES, WAVES])
def test_a_pair_gets_light_for_what_was_lost(made: Fabric, stack: ExitStack) -> None:
    """All has left once; what TCP sends again is nothing that is left."""
    stage = Stage(made, stack)
    stage.light()
    stage.agent.left = {("g0", "g2"): 1000}
    stage.await_lit(("g0", "g2"))
    stage.agent.left = {}
    stage.agent.lost = {("g3", "g1")}
    stage.await_lit(("g3", "g1"))
    stage.agent.lost = set()
    stage.wait(lambda: stage.decisions()[-1]["left_bytes"] == FRAME_BYTES)


def test_every_node_is_told_of_every_other() -> None:
    paths = {(1, 3): (Lightpath(0, 1), Lightpath(1, 0)), (0, 2): (Lightpath(0, 0),)}
    found = tables(WAVES, ["g1", "g3"], paths)
    ips = {gpu.name: gpu.ip for gpu in WAVES.gpus.values()}
    two = [{"port": 0, "wavelength": 1}, {"port": 1, "wavelength": 0}]
    assert found == {
        "g1": {ips["g3"]: {"lit": True, "paths": two}},
        "g3": {ips["g1"]: {"lit": False, "paths": []}},
    }


def test_lightpaths_over_a_switch_that_does_not_pass_them_are_left_out() -> None:
    paths = {
        (0, 2): (Lightpath(0, 0), Lightpath(1, 1)),
        (1, 2): (Lightpath(0, 1),),
        (0, 1): (Lightpath(0, 1),),
    }
    setting = setting_of(WAVES, paths)
    found = passed(
        WAVES, paths, lambda name: frozenset() if name == "w2" else setting[name]
    )
    assert found == {(0, 1): (Lightpath(0, 1),)}
    assert passed(
        WAVES, paths, lambda name: frozenset() if name == "w3" else setting[name]
    ) == {
        **paths,
        (0, 2): (Lightpath(0, 0),),
    }


# Lit once, and again and again


@pytest.mark.parametrize("made", [ONCE, PLANES, WAVES])
def test_a_job_is_lit_for_what_it_sends_and_leaves_nothing(
    made: Fabric, stack: ExitStack
) -> None:
    stage = Stage(made, stack)
    light = stage.light()
    plan = stage.site.plan_document(light)
    assert (plan.plane, plan.kind, plan.ranks) == (
        light.place,
        "interconnect",
        list(RANKS),
    )
    assert plan.lightpaths == stage.own().lightpaths
    around = {(gpu, RANKS[(rank + 1) % 4]) for rank, gpu in enumerate(RANKS)}
    assert stage.agent.lit().keys() == around
    assert stage.stand() == stage.as_told()
    assert stage.agent.log[0] == "hold"
    assert stage.agent.log[-1] == "lit"
    assert set(stage.agent.log[1:-1]) == {
        name for name, group in stage.stand().items() if group
    }
    assert all(stage.optical.holder(name) == "red" for name in made.optical_switches)
    shown = stage.own()
    assert (shown.job, shown.trouble) == ("red", None)
    assert shown.lightpaths.keys() == set(RANKS)
    assert shown.statistics is not None
    assert shown.statistics.decisions == 0
    stage.optical.look(next(iter(made.optical_switches)))
    assert lit_circuits(made, stage.optical.cross_connects()) == []
    with pytest.raises(ConflictError, match="is that of job red"):
        stage.site.light("blue", light)
    assert stage.site.clear("blue", light) == []
    assert stage.site.clear("red", light) == []
    assert not any(stage.stand().values())
    assert stage.agent.tables == {gpu: {} for gpu in RANKS}
    assert stage.optical.holder("q0" if made is not WAVES else "w0") is None
    assert stage.site.clear("red", light) == []
    assert stage.own().job is None


@pytest.mark.parametrize("made", [PLANES, WAVES])
def test_light_follows_what_is_left(made: Fabric, stack: ExitStack) -> None:
    stage = Stage(made, stack)
    stage.light()
    time.sleep(0.1)
    assert stage.decisions() == [], "nothing was left, and light was divided"
    wishes = [
        {("g0", "g2"): 1000},
        {("g0", "g2"): 500, ("g3", "g1"): 500},
        {("g2", "g0"): 7},
    ]
    for wish in wishes:
        stage.agent.left = dict(wish)
        stage.await_lit(*wish)
        # What was told may be of before; then it is lit again with the next decision.
        stage.wait(lambda: stage.stand() == stage.as_told())
    stage.wait(lambda: not stage.decisions()[-1]["changed"])
    stage.agent.left = {}
    # A decision is on record when the O-NICs have been told, one more than of the beginning.
    stage.wait(lambda: len(stage.decisions()) == stage.agent.log.count("lit") - 1)
    found = stage.decisions()
    assert len(found) >= 3
    assert [one["number"] for one in found] == list(range(1, len(found) + 1))
    assert {one["problem"] for one in found} == {None}
    assert {one["left_bytes"] for one in found} >= {1000, 7}
    assert any(one["changed"] for one in found)
    # All is dark for as long where nothing changes.
    for one in found:
        assert one["dark_s"] >= 0.01
        assert one["dark_s"] >= one["write_s"] > demand_loop.GUARD_S
    shown = stage.own()
    statistics = shown.statistics
    assert statistics is not None
    assert statistics.decisions == len(found)
    assert statistics.dark_total_s == pytest.approx(sum(one["dark_s"] for one in found))
    assert shown.mode == "again"
    assert (statistics.dark.max_s or 0) >= (statistics.dark.p50_s or 0) >= 0.01
    # Nobody's light changes while anybody sends.
    told = None
    for what in stage.agent.log:
        if what in ("hold", "lit"):
            told = what
        else:
            assert told == "hold"


def test_decisions_that_are_not_kept_count(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand_loop, "KEPT", 2)
    stage = Stage(PLANES, stack)
    stage.light()
    stage.agent.left = {("g0", "g2"): 1000}
    stage.wait(
        lambda: len(stage.decisions()) == 2 and stage.decisions()[-1]["number"] >= 4
    )
    stage.site.stop()
    statistics, kept = stage.own().statistics, stage.decisions()
    assert statistics is not None
    assert statistics.decisions == kept[-1]["number"]
    assert statistics.dark_total_s > sum(one["dark_s"] for one in kept) + 0.015
    assert 1 <= statistics.changed < statistics.decisions


def test_light_that_somebody_takes_away_is_made_again(stack: ExitStack) -> None:
    stage = Stage(PLANES, stack)
    stage.light()
    stage.agent.left = {("g0", "g2"): 1000}
    stage.await_lit(("g0", "g2"))
    stage.agent.left = {}
    stage.wait(lambda: stage.stand() == stage.as_told())
    stage.switches["q0"].device.submit(time.monotonic_ns(), Rewire(only=True))
    stage.wait(lambda: stage.stand()["q0"] and stage.stand() == stage.as_told())
    stage.wait(lambda: not stage.site.troubles())


def test_circuits_set_once_that_somebody_takes_away_are_made_again(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand_loop, "WATCH_S", 0.05)
    stage = Stage(ONCE, stack)
    stage.light()
    told = stage.as_told()
    stage.switches["q0"].device.submit(time.monotonic_ns(), Rewire(only=True))
    stage.wait(lambda: stage.agent.log.count("lit") == 2)
    assert stage.stand() == stage.as_told() == told
    stage.wait(lambda: not stage.site.troubles())


def test_circuits_set_once_are_not_divided_again(stack: ExitStack) -> None:
    stage = Stage(ONCE, stack)
    stage.light()
    stage.agent.left = {("g0", "g2"): 1000}
    time.sleep(0.1)
    assert stage.agent.log.count("hold") == 1
    assert stage.own().mode == "once"


# When something fails


def test_a_switch_that_fails_costs_its_lightpaths_until_it_is_back(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand_loop, "RETRY_S", 0.05)
    stage = Stage(PLANES, stack)
    stage.light()
    stage.switches["q1"].stop()
    stage.agent.left = {("g0", "g2"): 1000}
    stage.await_lit(("g0", "g2"))
    stage.wait(lambda: stage.agent.lit() == {("g0", "g2"): [(0, None)]})
    stage.wait(stage.site.troubles)
    (trouble,) = stage.site.troubles()
    assert trouble.startswith("parallel-ocs: optical switch q1: ")
    stage.switches["q1"].start()
    stage.wait(lambda: stage.agent.lit() == {("g0", "g2"): [(0, None), (1, None)]})
    stage.wait(lambda: stage.site.troubles() == [])


def test_a_switch_that_hangs_darkens_the_others_once(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringlight.extensions.sip_ml.light.divided.PATIENCE_S", 1.0)
    stage = Stage(PLANES, stack)
    stage.light()
    stage.switches["q1"].hung = True
    stage.agent.left = {("g0", "g2"): 1000}
    stage.wait(lambda: stage.agent.lit() == {("g0", "g2"): [(0, None)]})
    stage.agent.left = {("g3", "g1"): 1000}
    stage.wait(lambda: stage.agent.lit() == {("g3", "g1"): [(0, None)]})
    stage.wait(lambda: len([one for one in stage.decisions() if one["problem"]]) >= 6)
    failed = [one for one in stage.decisions() if one["problem"]]
    assert all(one["problem"].startswith("optical switch q1: ") for one in failed)
    # The first one waited for it; another may have been held up by something else.
    slow = [one["dark_s"] >= 1.0 for one in failed]
    assert slow[0]
    assert sum(slow) <= 2
    assert len(stage.site.troubles()) == 1
    stage.switches["q1"].hung = False
    stage.wait(lambda: stage.agent.lit() == {("g3", "g1"): [(0, None), (1, None)]})
    stage.wait(lambda: stage.site.troubles() == [])


def test_without_any_switch_all_is_held_and_tried_again(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand_loop, "RETRY_S", 0.05)
    stage = Stage(PLANES, stack)
    stage.light()
    for switch in stage.switches.values():
        switch.stop()
    stage.agent.left = {("g0", "g2"): 1000}
    stage.wait(lambda: len([one for one in stage.decisions() if one["problem"]]) >= 2)
    assert stage.agent.lit() == {}
    stage.agent.left = {}
    for switch in stage.switches.values():
        switch.start()
    # Nothing is left, but who is held must not stay so.
    stage.wait(stage.agent.lit)
    stage.wait(lambda: stage.stand() == stage.as_told())


def test_an_agent_that_refuses_is_tried_again_and_told(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand_loop, "RETRY_S", 0.05)
    stage = Stage(PLANES, stack)
    stage.light()
    stage.agent.refuse = "GPU g0 has no O-NIC"
    stage.agent.left = {("g0", "g2"): 1000}
    stage.wait(lambda: stage.site.troubles() == ["parallel-ocs: GPU g0 has no O-NIC"])
    stage.agent.refuse = None
    stage.await_lit(("g0", "g2"))
    stage.wait(lambda: stage.site.troubles() == [])


def test_an_agent_that_cannot_say_what_is_left_is_asked_again(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand_loop, "RETRY_S", 0.05)
    stage = Stage(PLANES, stack)
    stage.light()
    lit = stage.agent.lit()
    stage.agent.mute = "O-NIC g0: lightpaths: gone"
    stage.wait(
        lambda: stage.site.troubles() == ["parallel-ocs: O-NIC g0: lightpaths: gone"]
    )
    assert stage.agent.lit() == lit, "light that is good was taken away"
    stage.agent.mute = None
    stage.wait(lambda: stage.site.troubles() == [])


@pytest.mark.parametrize("what", ["refuse", "forget", "dark"])
def test_a_job_whose_light_does_not_come_is_refused(
    what: str, stack: ExitStack
) -> None:
    stage = Stage(ONCE, stack)
    light = stage.plan(RANKS)
    if what == "refuse":
        stage.agent.refuse = "no"
    elif what == "forget":
        stage.agent.forgets = {"g1"}
    else:
        stage.switches["q0"].stop()
    said = {
        "refuse": "no",
        "forget": "the lightpaths of g1 did not read back",
        "dark": "optical switch q0",
    }
    with pytest.raises(ControllerError, match=said[what]):
        stage.site.light("red", light)
    assert stage.own().job is None
    if what == "dark":
        (problem,) = stage.site.clear("red", light)
        assert problem.startswith("optical switch q0: ")
        stage.switches["q0"].start()
    stage.agent.refuse, stage.agent.forgets = None, set()
    assert stage.site.clear("red", light) == []
    assert not any(stage.stand().values())


def test_a_job_that_cannot_have_a_loop_holds_no_switch(stack: ExitStack) -> None:
    stage = Stage(PLANES, stack)
    light = stage.plan(RANKS)
    stage.optical.drivers = {
        name: one for name, one in stage.optical.drivers.items() if name != "q1"
    }
    with pytest.raises(NotFoundError, match="there is no optical switch q1"):
        stage.site.light("red", light)
    assert stage.optical.holder("q0") is None


# The controller ends and comes back


@pytest.mark.parametrize("made", [ONCE, PLANES, WAVES])
def test_who_takes_over_divides_first_whatever_is_left(
    made: Fabric, stack: ExitStack
) -> None:
    stage = Stage(made, stack)
    stage.light()
    stage.site.stop()
    assert stage.agent.lit(), "the end left them in the dark"
    # It died while all was held and the switches were half written.
    stage.agent.put(dict(tables(made, RANKS, {})))
    first = next(iter(stage.switches.values()))
    first.device.submit(time.monotonic_ns(), Rewire(only=True))
    stage.wait(lambda: not first.device.cross_connects())
    again = stage.take_over()
    stage.wait(stage.agent.lit)
    stage.wait(lambda: stage.stand() == stage.as_told())
    assert stage.own().job == "red"
    stage.wait(lambda: len(stage.decisions()) == 1)
    if made is not ONCE:
        stage.agent.left = {("g0", "g2"): 1000}
        stage.await_lit(("g0", "g2"))
    assert stage.site.clear("red", again) == []


def test_a_switch_that_is_away_costs_others_no_light_that_is_set_once(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand_loop, "RETRY_S", 0.02)
    stage = Stage(ONCE, stack)
    stage.light()
    told = stage.agent.lit()
    stage.site.stop()
    stage.switches["q0"].stop()
    again = stage.take_over()
    stage.wait(stage.site.troubles)
    some = stage.agent.lit()
    assert some.keys() == told.keys()
    assert some != told
    time.sleep(0.5)
    assert stage.agent.log.count("hold") == 2
    stage.switches["q0"].start()
    stage.wait(lambda: stage.agent.lit() == told)
    stage.wait(lambda: stage.site.troubles() == [])
    assert stage.agent.log.count("hold") == 3
    assert stage.site.clear("red", again) == []


def test_light_that_is_set_once_and_refused_is_tried_less_and_less_often(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand_loop, "RETRY_S", 0.02)
    monkeypatch.setattr(demand_loop, "RETRY_MOST_S", 0.4)
    stage = Stage(ONCE, stack)
    stage.light()
    told = stage.agent.lit()
    stage.site.stop()
    stage.switches["q0"].device.submit(time.monotonic_ns(), Rewire(only=True))
    stage.optical.driver("q0").set_port_enabled(1, False)
    stage.take_over()
    stage.wait(lambda: len(stage.decisions()) == 6)
    began = [one["t"] for one in stage.decisions()]
    pauses = [after - before for before, after in itertools.pairwise(began)]
    # 40, 80, 160, 320 and 400 ms of light between; then it stays so.
    assert all(
        pause >= least
        for pause, least in zip(pauses, (0.04, 0.08, 0.16, 0.32, 0.4), strict=True)
    )
    assert "port 1 is disabled" in stage.decisions()[-1]["problem"]
    stage.optical.driver("q0").set_port_enabled(1, True)
    stage.wait(lambda: stage.agent.lit() == told)
    stage.wait(lambda: stage.site.troubles() == [])


def test_the_end_waits_for_a_division_that_has_begun(stack: ExitStack) -> None:
    stage = Stage(PLANES, stack)
    stage.light()
    stage.agent.left = {("g0", "g2"): 1000}
    for _ in range(10):
        time.sleep(0.013)
        stage.site.stop()
        assert stage.agent.log[-1] == "lit"
        stage.take_over()


def test_a_controller_that_is_ending_begins_nothing(stack: ExitStack) -> None:
    stage = Stage(PLANES, stack)
    stage.site.stop()
    stage.light()
    stage.agent.left = {("g0", "g2"): 1000}
    time.sleep(0.1)
    assert stage.agent.log.count("hold") == 1


# Light that follows phases


def named(*pairs: list[tuple[int, int]]) -> set[tuple[str, str]]:
    return {(RANKS[a], RANKS[b]) for own in pairs for a, b in own}


def test_light_follows_the_turns_that_workers_end(stack: ExitStack) -> None:
    stage = Stage(PHASED, stack)
    light = stage.light(PHASES)
    # A pair alone has all light of its GPUs.
    lit = {pair: len(own) for pair, own in stage.agent.lit().items()}
    assert lit == dict.fromkeys(named(WITHIN, ACROSS), 2)
    assert stage.stand() == stage.as_told()
    before = stage.stand()

    stage.agent.turns = {"g0": 1, "g1": 1, "g2": 1}
    # One of the second pair still sends: its light stays as it is; what the first pair had is held.
    stage.await_lit(*named(ACROSS))
    assert stage.stand() == before

    stage.agent.log.clear()
    stage.agent.turns = {"g0": 1, "g1": 1, "g2": 1, "g3": 1}
    # 0 and 3 go on to the next iteration, but not before those that they meet there.
    stage.await_lit(*named(BOTH))
    told = [
        word
        for word in stage.agent.log
        if word in ("hold", "lit") or word.startswith("q")
    ]
    # Everybody whose circuits are taken holds before a switch is set, and sends when all are.
    assert told[0] == "hold"
    assert told[-1] == "lit"
    assert set(told[1:-1]) == set(stage.switches)
    # A decision is on record once it is over, after the O-NICs were told.
    stage.wait(lambda: [one for one in stage.decisions() if one["turns"] == [(0, 2)]])
    (decision,) = [one for one in stage.decisions() if one["turns"] == [(0, 2)]]
    assert decision["problem"] is None
    assert decision["changed"]
    assert (
        decision["dark_s"]
        >= PHASED.optical_switches["q0"].device.declared()["dark_s"]
        == 0.01
    )
    assert stage.own().mode == "phases"

    stage.agent.turns = {"g0": 1, "g1": 2, "g2": 2, "g3": 1}
    stage.await_lit(*named(WITHIN, ACROSS))
    stage.site.clear("red", light)
    assert not any(stage.stand().values())


def test_the_next_controller_goes_on_in_the_turns_that_it_finds(
    stack: ExitStack,
) -> None:
    stage = Stage(PHASED, stack)
    stage.light(PHASES)
    stage.site.stop()
    stage.agent.turns = dict.fromkeys(RANKS, 1)
    stage.take_over(PHASES)
    stage.await_lit(*named(BOTH))
    stage.agent.turns = {"g0": 2, "g1": 4, "g2": 4, "g3": 2, "g9": 7}
    # All is over, and a worker that says more than it can have ended harms nobody.
    stage.await_lit()
    stage.agent.turns = {"g0": 9, "g1": 9}
    time.sleep(0.1)
    assert stage.site.troubles() == []


def test_circuits_that_vanish_in_a_turn_are_made_again(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following_phases, "WATCH_S", 0.05)
    stage = Stage(PHASED, stack)
    stage.light(PHASES)
    stood = stage.stand()
    stage.switches["q0"].device.submit(time.monotonic_ns(), Rewire(only=True))
    stage.wait(lambda: stage.decisions() and stage.stand() == stood)


def test_light_of_other_planes_cannot_follow_phases(stack: ExitStack) -> None:
    stage = Stage(PLANES, stack)
    with pytest.raises(
        InvalidError,
        match=r"^light phases: parallel-ocs is not set circuit by circuit$",
    ):
        stage.plan(RANKS, PHASES)
