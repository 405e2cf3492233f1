"""The conductor on real sockets, over WSSs in memory: what workers are told, whatever they or a WSS do."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.errors import UnavailableError
from ringlight.controller.light.documents import quantile
from ringlight.controller.light.switches import Lights
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import Unreachable
from ringlight.controller.optical.model import Snapshot
from ringlight.extensions.wrht import conducting as ring_conductor
from ringlight.extensions.wrht.conducting import RingConductor
from ringlight.extensions.wrht.provider import RingProvider, plan_light
from ringlight.extensions.wrht.wdm import RingPlan
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.light import Reconfigure
from tests.extensions.wrht.test_ring_light import ring_fabric
from tests.lights import Wss, light_context

FABRIC, RING = ring_fabric(5)
PLAN = plan_light(FABRIC, RING, {"collective": "wrht"})
IPS = {gpu: FABRIC.gpus[gpu].ip for gpu in RING.nodes}
FIRST = sorted(PLAN.steps[0].pairs)
WAIT_S = 10.0


class Stuck(Wss):
    """A WSS that can be made to refuse writes, and to hang: not to answer before ``free`` is set."""

    stuck = False

    def __init__(self, name: str) -> None:
        super().__init__(name, 4, 1)
        self.free, self.hangs = threading.Event(), threading.Event()
        self.free.set()

    def _read(self, deadline: Deadline) -> Snapshot:
        if not self.free.is_set():
            self.hangs.set()
            self.free.wait(3 * WAIT_S)
        return super()._read(deadline)

    def _add(self, batch: Any, deadline: Deadline) -> None:
        if self.stuck:
            raise Unreachable("stuck")
        super()._add(batch, deadline)


class Stage:
    def __init__(
        self, directory: Path, stack: ExitStack, plan: RingPlan = PLAN
    ) -> None:
        self.directory, self.stack = directory, stack
        self.wss = {name: Stuck(name) for name in RING.switches}
        self.bus = EventBus()
        self.site = OpticalSite(self.wss, {}, self.bus)
        lights = Lights(self.site, RING.switches)
        stack.callback(lights.close)
        sockets = {gpu: directory / gpu for gpu in RING.nodes}
        self.conductor = RingConductor("j", plan, lights, sockets, IPS, self.bus)
        stack.callback(self.conductor.stop)
        for one in self.wss.values():
            stack.callback(one.free.set)
        self.conductor.start()

    def connect(self, gpu: str) -> Worker:
        return Worker(self.directory / gpu, self.stack)

    def carried(self) -> set[tuple[str, CrossConnect]]:
        return {(name, xc) for name, one in self.wss.items() for xc in one.stand}


class Worker:
    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.socket = stack.enter_context(
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        self.socket.settimeout(WAIT_S)
        self.socket.connect(str(path))

    def say(self, **packet: Any) -> None:
        self.socket.send(json.dumps(packet).encode())

    def hear(self) -> dict[str, Any]:
        return dict(json.loads(self.socket.recv(4096)))


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    # So that only what happens wakes the conductor.
    monkeypatch.setattr(ring_conductor, "WATCH_S", 3600.0)
    with ExitStack() as stack:
        yield Stage(tmp_path, stack)


def needed(step: int) -> set[tuple[str, CrossConnect]]:
    return {
        (name, xc)
        for name, group in PLAN.steps[step].cross_connects.items()
        for xc in group
    }


def test_light_is_there_when_the_flow_is_told(stage: Stage) -> None:
    workers = {sender: stage.connect(sender) for sender, _ in FIRST}
    for sender, receiver in FIRST:
        workers[sender].say(open="a", peer=IPS[receiver], step=0)
    for worker in workers.values():
        assert worker.hear() == {"lit": "a"}
    assert needed(0) <= stage.carried()
    (sender, receiver), *_ = sorted(PLAN.steps[1].pairs)
    ahead = stage.connect(sender)
    ahead.say(open=1, peer=IPS[receiver], step=1)
    for worker in workers.values():
        worker.say(close="a")
        assert worker.hear() == {"closed": "a"}
    assert ahead.hear() == {"lit": 1}
    assert needed(1) <= stage.carried()
    assert stage.conductor.document().step == 1
    deadline = time.monotonic() + WAIT_S
    while stage.conductor.statistics().count < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    second = stage.conductor.changes[1]
    assert second.step == 1
    assert 0 < second.write_s <= second.total_s
    assert stage.conductor.statistics().total.max_s >= second.total_s


@pytest.mark.parametrize(
    ("packet", "said"),
    [
        (b"moon", {"error": "Expecting value: line 1 column 1 (char 0)"}),
        (b"[]", {"error": "not a JSON object"}),
        (b"{}", {"error": 'neither "open" nor "close"'}),
        (b'{"close": 3}', {"error": "flow 3 is not open"}),
        (b'{"open": true}', {"error": "open must be a number or a text"}),
        (b'{"open": 1, "step": "x"}', {"error": "step must be a whole number"}),
        (b"x" * 5000, {"error": "longer than 4096 bytes"}),
        (
            b'{"open": 1, "peer": "1.2.3.4", "step": 0}',
            {
                "failed": 1,
                "reason": "1.2.3.4: is not on the ring",
                "retry_after_s": 0.5,
            },
        ),
        (
            b'{"open": 1, "peer": "%s"}' % IPS["r1"].encode(),
            {
                "failed": 1,
                "reason": "there are 4 steps: say the step",
                "retry_after_s": 0.5,
            },
        ),
        (
            b'{"open": 1, "peer": "%s", "step": 0}' % IPS["r4"].encode(),
            {
                "failed": 1,
                "reason": "r0 sends nothing to r4 in step 0",
                "retry_after_s": 0.5,
            },
        ),
    ],
)
def test_what_makes_no_sense_is_answered_and_changes_nothing(
    stage: Stage, packet: bytes, said: dict[str, Any]
) -> None:
    worker = stage.connect("r0")
    for _ in range(2):
        worker.socket.send(packet)
        assert worker.hear() == said
    assert stage.carried() == set()
    worker.say(open=1, peer=IPS["r1"], step=0)
    assert worker.hear() == {"lit": 1}
    worker.say(open=1, peer=IPS["r1"], step=0)
    assert worker.hear() == {"error": "flow 1 is already open"}
    worker.say(close=True)
    assert worker.hear() == {"error": "close must be a number or a text"}
    worker.say(close=1)
    assert worker.hear() == {"closed": 1}


def test_a_wss_that_cannot_be_written_is_told_and_tried_again(stage: Stage) -> None:
    stage.wss["r-w1"].stuck = True
    worker = stage.connect("r0")
    worker.say(open=1, peer=IPS["r1"], step=0)
    told = worker.hear()
    assert told == {
        "failed": 1,
        "reason": "optical switch r-w1: stuck",
        "retry_after_s": 0.5,
    }
    assert stage.conductor.trouble == "optical switch r-w1: stuck"
    stage.wss["r-w1"].stuck = False
    worker.say(open=2, peer=IPS["r1"], step=0)
    assert worker.hear() == {"lit": 2}
    assert stage.conductor.trouble is None


def test_a_wss_that_hangs_holds_up_nobody_who_comes_closes_or_goes(
    stage: Stage,
) -> None:
    hung = stage.wss["r-w1"]
    hung.free.clear()
    one, two = stage.connect("r0"), stage.connect("r2")
    one.say(open=1, peer=IPS["r1"], step=0)
    assert hung.hangs.wait(WAIT_S)
    two.say(open=1, peer=IPS["r1"], step=0)
    two.say(close=1)
    assert two.hear() == {"closed": 1}
    one.socket.close()
    late = stage.connect("r0")
    late.say(open=7, peer=IPS["r1"], step=0)
    late.say()
    assert late.hear() == {"error": 'neither "open" nor "close"'}
    hung.free.set()
    assert late.hear() == {"lit": 7}


def test_a_wss_that_hangs_when_it_is_looked_after_holds_up_nobody(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_conductor, "WATCH_S", 0.1)
    worker = stage.connect("r0")
    worker.say(open=1, peer=IPS["r1"], step=0)
    assert worker.hear() == {"lit": 1}
    hung = stage.wss["r-w1"]
    hung.free.clear()
    assert hung.hangs.wait(WAIT_S)
    worker.say(close=1)
    assert worker.hear() == {"closed": 1}
    worker.say(open=2, peer=IPS["r1"], step=0)
    assert worker.hear() == {"lit": 2}


def test_a_wss_that_was_away_counts_as_there_with_the_next_step(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_conductor, "WATCH_S", 0.05)
    workers = {sender: stage.connect(sender) for sender, _ in FIRST}
    for sender, receiver in FIRST:
        workers[sender].say(open=1, peer=IPS[receiver], step=0)
        assert workers[sender].hear() == {"lit": 1}
    stage.wss["r-w1"].away = True
    deadline = time.monotonic() + WAIT_S
    while stage.site.view("r-w1").reachable and time.monotonic() < deadline:
        time.sleep(0.001)
    monkeypatch.setattr(ring_conductor, "WATCH_S", 3600.0)
    stage.wss["r-w1"].away = False
    (sender, receiver), *_ = sorted(PLAN.steps[1].pairs)
    for worker in workers.values():
        worker.say(close=1)
    ahead = stage.connect(sender)
    ahead.say(open=1, peer=IPS[receiver], step=1)
    assert ahead.hear() == {"lit": 1}
    assert stage.site.view("r-w1").error is None


def test_a_conductor_that_cannot_go_on_hangs_up_and_says_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(deadline: Deadline) -> Snapshot:
        raise RuntimeError("a driver's fault")

    monkeypatch.setattr(stage.wss["r-w1"], "_read", broken)
    worker = stage.connect("r0")
    worker.say(open=1, peer=IPS["r1"], step=0)
    assert worker.socket.recv(64) == b""
    assert (
        stage.conductor.trouble
        == 'the conductor has ended: RuntimeError("a driver\'s fault")'
    )


def test_the_end_hangs_up_at_once_and_waits_for_what_is_being_written(
    stage: Stage,
) -> None:
    hung = stage.wss["r-w1"]
    hung.free.clear()
    worker = stage.connect("r0")
    worker.say(open=1, peer=IPS["r1"], step=0)
    assert hung.hangs.wait(WAIT_S)
    end = threading.Thread(target=stage.conductor.stop)
    end.start()
    assert worker.socket.recv(64) == b""
    end.join(0.2)
    assert end.is_alive()
    hung.free.set()
    end.join(WAIT_S)
    assert not end.is_alive()
    assert needed(0) <= stage.carried()


@pytest.mark.parametrize(
    ("reconfigure", "writes"), [("each-step", 2), ("changed-only", 0)]
)
def test_a_ring_that_reconfigures_in_each_step_takes_all_light_away_and_makes_it_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reconfigure: Reconfigure,
    writes: int,
) -> None:
    monkeypatch.setattr(ring_conductor, "WATCH_S", 3600.0)
    around = replace(RING, reconfigure=reconfigure)
    plan = plan_light(FABRIC, around, {"collective": "bidirectional-ring"})
    with ExitStack() as stack:
        stage = Stage(tmp_path, stack, plan)
        workers = {gpu: stage.connect(gpu) for gpu in RING.nodes}

        def play(step: int) -> None:
            for sender, receiver in sorted(plan.steps[step].pairs):
                workers[sender].say(open=receiver, peer=IPS[receiver], step=step)
            for sender, receiver in sorted(plan.steps[step].pairs):
                assert workers[sender].hear() == {"lit": receiver}
            for sender, receiver in sorted(plan.steps[step].pairs):
                workers[sender].say(close=receiver)
                assert workers[sender].hear() == {"closed": receiver}

        play(0)
        for step in (1, 2, 3):
            before = {name: one.writes for name, one in stage.wss.items()}
            play(step)
            for name, one in stage.wss.items():
                assert one.writes == before[name] + writes
                assert one.stand == plan.steps[step].cross_connects[name]


def test_what_another_wrote_meanwhile_is_noticed_by_the_next_write(
    stage: Stage,
) -> None:
    worker = stage.connect("r0")
    worker.say(open=1, peer=IPS["r1"], step=0)
    assert worker.hear() == {"lit": 1}
    stray = CrossConnect(1, 7, 0)
    for wss in stage.wss.values():
        wss.stand = {stray}
    others = {sender: stage.connect(sender) for sender, _ in FIRST}
    for sender, receiver in FIRST[1:]:
        others[sender].say(open=1, peer=IPS[receiver], step=0)
        assert others[sender].hear() == {"lit": 1}
        others[sender].say(close=1)
    (sender, receiver), *_ = sorted(PLAN.steps[1].pairs)
    ahead = stage.connect(sender)
    ahead.say(open=2, peer=IPS[receiver], step=1)
    worker.say(close=1)
    assert ahead.hear() == {"lit": 2}
    lacking = {name for name, _ in needed(1) - stage.carried()}
    before, after = (step.cross_connects for step in PLAN.steps[:2])
    written = {name for name in RING.switches if not after[name] <= before[name]}
    assert written
    assert not lacking & written


def test_a_worker_that_hangs_up_takes_its_flows_with_it(stage: Stage) -> None:
    one, two = stage.connect("r0"), stage.connect("r0")
    one.say(open=1, peer=IPS["r1"], step=0)
    assert one.hear() == {"lit": 1}
    two.say(open=1, peer=IPS["r1"], step=0)
    one.socket.close()
    assert two.hear() == {"lit": 1}


def test_a_worker_that_does_not_read_is_dropped(stage: Stage) -> None:
    deaf = stage.connect("r0")
    deaf.socket.settimeout(0.2)
    try:
        for _ in range(20_000):
            deaf.socket.send(b"{}")
    except OSError:
        pass
    other = stage.connect("r2")
    other.say(open=1, peer=IPS["r1"], step=0)
    assert other.hear() == {"lit": 1}


def test_the_end_hangs_up_and_leaves_the_light(stage: Stage, tmp_path: Path) -> None:
    worker = stage.connect("r0")
    worker.say(open=1, peer=IPS["r1"], step=0)
    assert worker.hear() == {"lit": 1}
    stage.conductor.stop()
    assert worker.socket.recv(64) == b""
    assert list(tmp_path.iterdir()) == []
    assert needed(0) <= stage.carried()


def test_a_socket_that_cannot_be_made_leaves_none(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = OpticalSite(
            {name: Wss(name, 4, 1) for name in RING.switches}, {}, EventBus()
        )
        lights = Lights(site, RING.switches)
        stack.callback(lights.close)
        sockets = {gpu: tmp_path / gpu for gpu in RING.nodes}
        sockets["r4"] = tmp_path / "nowhere" / "r4"
        with pytest.raises(OSError, match="nowhere"):
            RingConductor("j", PLAN, lights, sockets, IPS, EventBus())
        assert list(tmp_path.iterdir()) == []


def test_light_that_could_not_be_set_leaves_no_threads() -> None:
    site = OpticalSite(
        {name: Wss(name, 4, 1) for name in RING.switches}, {}, EventBus()
    )
    before = set(threading.enumerate())
    with pytest.raises(UnavailableError, match="server agent"):
        RingProvider(light_context(FABRIC, site)).light("j", PLAN)
    assert set(threading.enumerate()) == before


def test_health_names_a_job_that_could_not_be_taken_over_until_it_is_cleared(
    tmp_path: Path,
) -> None:
    site = OpticalSite(
        {name: Wss(name, 4, 1) for name in RING.switches}, {}, EventBus()
    )
    nowhere = {gpu: tmp_path / "nowhere" / gpu for gpu in RING.nodes}
    rings = RingProvider(light_context(FABRIC, site, sockets=nowhere))
    rings.adopt("j", PLAN)
    (trouble,) = rings.troubles()
    assert trouble.startswith(
        f"{PLAN.place}: job j is not taken over: ring {PLAN.place}: flow socket "
    )
    rings.clear("j", PLAN)
    assert rings.troubles() == []


def test_switches_are_held_for_one_job() -> None:
    site = OpticalSite(
        {name: Wss(name, 4, 1) for name in RING.switches}, {}, EventBus()
    )
    assert site.hold("red", RING.switches) is None
    assert site.hold("red", RING.switches) is None
    assert site.hold("blue", RING.switches[:1]) == "red"
    assert site.holder("r-w0") == "red"
    site.release("blue")
    assert site.holder("r-w0") == "red"
    site.release("red")
    assert site.holder("r-w0") is None


def test_a_wss_that_is_away_is_named(stage: Stage) -> None:
    for wss in stage.wss.values():
        wss.away = True
    worker = stage.connect("r0")
    worker.say(open=1, peer=IPS["r1"], step=0)
    assert worker.hear()["reason"].startswith("optical switch r-w")
    with pytest.raises(UnavailableError):
        OpticalSite(stage.wss, {}, stage.bus).look("r-w0")


def test_quantiles() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([float(n) for n in range(100)], 0.99) == 99.0
