"""Jobs on a WDM ring: real WSS processes, O-NICs and workers, driven through the controller's REST API."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from ringlight.containers.worker.flows import Flows, LitFlow
from ringlight.containers.worker.reference import train_in_one_process
from ringlight.containers.worker.spec import parse_spec
from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.light.switches import Lights
from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.wrht import conducting as ring_conductor
from ringlight.extensions.wrht.conducting import RingConductor
from ringlight.extensions.wrht.provider import plan_light
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.schema import FabricSpec
from tests.integration.test_controller_jobs import Run

pytestmark = pytest.mark.root

#: One wavelength and groups of three: two levels, so four steps, each with other light.
RING = {
    "rings": {"r": {"nodes": 5, "gpu": "p100", "rate": "25 Gbit/s", "wavelengths": 1}}
}
FABRIC = build_fabric(FabricSpec.model_validate(RING))
NODES = FABRIC.parts["rings"]["r"].nodes
SWITCHES = FABRIC.parts["rings"]["r"].switches
TRAIN = {
    "collective": "wrht",
    "gradient_bytes": 96400,
    "compute_s": 0.02,
    "iterations": 10,
    "seed": 7,
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Run]:
    with closing(Run(RING)) as run:
        yield run


@pytest.fixture
def run(shared: Run) -> Iterator[Run]:
    """The run with no job going on."""
    yield shared
    shared.cancel_all()
    shared.wait(lambda: idle(shared), "the ring was not cleared")


def submit(run: Run, name: str, **more: Any) -> str:
    answer = run.api.post(
        "/v1/jobs", json={"name": name, "hold": True, "gpus": 5, **TRAIN, **more}
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def ring(run: Run) -> dict[str, Any]:
    return dict(run.api.get("/v1/planes/r").json())


def lit(run: Run) -> dict[str, set[CrossConnect]]:
    """What the WSSs say that they carry."""
    found = {}
    for name in SWITCHES:
        answer = run.api.get(f"/v1/optical-switches/{name}/cross-connects").json()
        found[name] = {
            CrossConnect(e["ingress"], e["egress"], e["wavelength"]) for e in answer
        }
    return found


def flow_socket(run: Run, gpu: str) -> Path:
    return run.state / "onics" / gpu / "flow.sock"


def idle(run: Run) -> bool:
    return (
        ring(run)["own"]["playing"] is None
        and not any(lit(run).values())
        and not any(flow_socket(run, gpu).exists() for gpu in NODES)
    )


def expected(run: Run, job: str) -> str:
    """The fingerprint of the parameters when the same is trained in one process."""
    spec = json.loads((run.state / "workers" / f"{job}-0" / "spec.json").read_text())
    return str(
        train_in_one_process(parse_spec({**spec, "onic": None}))["parameters_sha256"]
    )


def check_training(run: Run, job: str, iterations: int, reference: str) -> None:
    assert {event["parameters_sha256"] for event in run.events(job, "done")} == {
        reference
    }
    assert len(run.events(job, "iteration")) == len(NODES) * iterations


def test_a_job_steps_its_light_and_leaves_none(run: Run) -> None:
    before = run.light_lost()
    plan = run.api.post(
        "/v1/planes/plan", json={"gpus": 5, "collective": "wrht"}
    ).json()
    assert (plan["plane"], plan["ranks"], plan["steps"], plan["set_ups"]) == (
        "r",
        list(NODES),
        4,
        4,
    )
    assert idle(run), "a plan changed something"
    red = submit(run, "red")
    job = run.wait_state(red, "READY")
    assert (job["plane"], job["switches"]) == ("r", list(SWITCHES))
    assert run.api.get("/v1/planes").json()[0]["jobs"] == [red]
    assert run.api.get("/v1/onics/r1").json()["transmit"].keys() == {
        FABRIC.gpus[peer].ip for peer in plan["transmit"]["r1"]
    }
    refused = run.api.put(
        f"/v1/optical-switches/{SWITCHES[0]}/cross-connects/1",
        json={"egress": 6, "wavelength": 0},
    )
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        "optical switch r-w0 is kept for job red",
    )
    sent = {
        (a, b, emit["wavelength"], 1)
        for a, peers in plan["transmit"].items()
        for b, emit in peers.items()
    }
    shown = run.lightpaths()
    assert shown
    assert shown < sent, "light of other steps than the first"
    again = run.api.post("/v1/jobs", json={"name": "blue", "gpus": 5, **TRAIN})
    assert (again.status_code, again.json()["detail"]) == (
        409,
        "the light of ring r is that of job red",
    )
    assert run.api.post("/v1/regroup", json={"jobs": [red]}).status_code == 422
    reference = expected(run, red)
    run.release(red)
    run.wait_state(red, "SUCCEEDED")
    check_training(run, red, 10, reference)
    statistics = ring(run)["own"]["statistics"]
    assert statistics["job"] == red
    assert statistics["set_ups_per_iteration"] == 4
    assert statistics["count"] == 39, "the light of the first step stands already"
    for figures in (statistics["total"], statistics["write"]):
        assert 0 < figures["p50_s"] <= figures["p99_s"] <= figures["max_s"]
    assert [one["step"] for one in run.api.get("/v1/planes/r/changes").json()] == list(
        range(1, 40)
    )
    run.assert_all_light_arrived(before, red)
    run.wait(lambda: idle(run), "light or sockets were left")
    assert run.lightpaths() == set()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            {"collective": "wrht-2"},
            "collective wrht-2 on ring r: step 0: wavelength 1 does not fit",
        ),
        ({"gpus": 4}, "4 GPUs: a job on ring r uses all its 5 nodes, r0 to r4"),
        (
            {"gpus": None, "ranks": ["r1", "r0", "r2", "r3", "r4"]},
            "step 0: no wavelength of 1 is free",
        ),
        ({"plane": "q"}, "there is no plane q"),
        (
            {"on_loss": "swap"},
            "on_loss swap: a job on ring r needs all its nodes; it can only fail",
        ),
    ],
)
def test_what_the_ring_cannot_carry_is_refused(
    run: Run, body: dict[str, Any], said: str
) -> None:
    answer = run.api.post("/v1/jobs", json={"name": "no", "gpus": 5, **TRAIN, **body})
    assert answer.status_code == 422
    assert said in answer.json()["detail"]


def test_a_controller_that_dies_is_taken_over_from_in_the_middle_of_a_job(
    run: Run,
) -> None:
    before = run.light_lost()
    # However long a busy machine takes to start it, workers wait.
    red = submit(run, "red", iterations=20, compute_s=0.05, peer_timeout_s=90)
    run.wait_state(red, "READY")
    reference = expected(run, red)
    run.release(red)
    run.wait(lambda: len(run.events(red, "iteration")) > 20, "no iterations")
    run.kill_controller()
    # It is away for longer than one try of anything takes.
    time.sleep(5.0)
    run.start_controller()
    assert run.job(red)["state"] == "RUNNING"
    run.wait_state(red, "SUCCEEDED")
    check_training(run, red, 20, reference)
    assert run.light_lost() | {"dark_drops": before["dark_drops"]} == before


def goes_dark(place: dict[str, Any]) -> None:
    host, _, port = place["address"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as other:
        other.sendall(b":oxc:swit:disc:all;*opc?\n")
        assert other.recv(64) == b"1\n"


def dies(place: dict[str, Any]) -> None:
    os.kill(place["pid"], signal.SIGKILL)


@pytest.mark.parametrize("happens", [goes_dark, dies])
def test_a_job_goes_on_when_a_wss_fails_and_is_back(
    run: Run, happens: Callable[[dict[str, Any]], None]
) -> None:
    red = submit(run, "red", iterations=30)
    run.wait_state(red, "READY")
    reference = expected(run, red)
    run.release(red)
    run.wait(lambda: len(run.events(red, "iteration")) > 20, "no iterations")
    happens(json.loads((run.state / "r-w2.ready").read_text()))
    run.wait_state(red, "SUCCEEDED")
    check_training(run, red, 30, reference)


def test_a_cancelled_job_leaves_the_ring_to_the_next_one(run: Run) -> None:
    red = submit(run, "red", iterations=1000)
    run.wait_state(red, "READY")
    run.release(red)
    run.wait(lambda: run.events(red, "iteration"), "no iterations")
    assert run.api.delete(f"/v1/jobs/{red}").status_code == 200
    blue = submit(run, "blue", collective="ring", iterations=3)
    run.wait_state(blue, "READY")
    run.release(blue)
    run.wait_state(blue, "SUCCEEDED")
    assert ring(run)["own"]["statistics"]["set_ups_per_iteration"] == 0


def test_a_link_test_has_its_light_all_the_time(run: Run) -> None:
    before = run.light_lost()
    test = {"seconds": 0.8, "to": [1, 2, 3, 4, 0]}
    job = submit(run, "links", workload="linktest", linktest=test)
    run.wait_state(job, "READY")
    run.release(job)
    run.wait_state(job, "SUCCEEDED")
    rates = [event["rate_bps"] for event in run.events(job, "linktest")]
    assert len(rates) == len(NODES)
    # 25 Gbit/s over the payload scale, in TCP payload; a busy machine gives less, and
    # a receiver that was held up counts what had waited for it.
    assert all(0.3 * 250e6 < rate < 1.5 * 250e6 for rate in rates), rates
    assert run.light_lost() == before


# Scripted workers against the WSSs, without a controller process


class Script:
    """A conductor in this process, over the lab's WSSs, and a scripted worker's connection at each node."""

    def __init__(
        self, run: Run, directory: Path, stack: ExitStack, collective: str = "wrht"
    ) -> None:
        entries = json.loads((run.state / "inventory.json").read_text())[
            "optical_switches"
        ]
        drivers = {
            name: make_driver(name, entries[name], switch.size, None)
            for name, switch in FABRIC.optical_switches.items()
        }
        self.site = OpticalSite(drivers, entries, EventBus())
        stack.callback(self.site.close)
        # Before the conductor is made, so after it has stopped: it would set light anew.
        stack.callback(self.darken)
        self.plan = plan_light(
            FABRIC, FABRIC.parts["rings"]["r"], {"collective": collective}
        )
        self.steps = [step.pairs for step in self.plan.steps]
        self.ips = {gpu: FABRIC.gpus[gpu].ip for gpu in NODES}
        self.sockets = {gpu: directory / gpu for gpu in NODES}
        self.stack = stack
        self.conductor = self.begin(resumed=False)
        self.workers = {gpu: Flows(path) for gpu, path in self.sockets.items()}
        for flows in self.workers.values():
            stack.callback(flows.shut)

    def darken(self) -> None:
        lights = Lights(self.site, SWITCHES)
        try:
            assert lights.set(dict.fromkeys(SWITCHES, frozenset()), exactly=True) == (
                len(SWITCHES),
                [],
            )
        finally:
            lights.close()

    def begin(self, *, resumed: bool) -> RingConductor:
        lights = Lights(self.site, SWITCHES)
        self.stack.callback(lights.close)
        one = RingConductor(
            "j",
            self.plan,
            lights,
            self.sockets,
            self.ips,
            self.site.bus,
            resumed=resumed,
        )
        self.stack.callback(one.stop)
        one.start()
        return one

    def open(
        self, step: int | None, pairs: Iterable[tuple[str, str]]
    ) -> dict[tuple[str, str], LitFlow]:
        return {(a, b): self.workers[a].open(self.ips[b], step) for a, b in pairs}

    def until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline
            for flows in self.workers.values():
                flows.update()
            time.sleep(0.001)

    def carried(self) -> dict[str, set[CrossConnect]]:
        return {name: set(self.site.look(name).cross_connects) for name in SWITCHES}


@pytest.fixture
def script(run: Run, tmp_path: Path) -> Iterator[Script]:
    with ExitStack() as stack:
        yield Script(run, tmp_path, stack)


def test_each_step_finds_its_light_set_when_it_is_told(script: Script) -> None:
    steps = script.steps
    flows = script.open(0, steps[0])
    for step in range(2 * len(steps)):
        ahead = script.open(step + 1, steps[(step + 1) % len(steps)])
        script.until(lambda flows=flows: all(flow.lit for flow in flows.values()))  # type: ignore[misc]
        assert not any(flow.lit for flow in ahead.values())
        carried = script.carried()
        for name, group in script.plan.steps[step % len(steps)].cross_connects.items():
            assert group <= carried[name]
        for (sender, _), flow in flows.items():
            script.workers[sender].close(flow)
        flows = ahead
    assert script.conductor.statistics().count >= 2 * len(steps) - 1


def test_light_that_went_is_found_and_set_again(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_conductor, "WATCH_S", 0.2)
    flows = script.open(0, script.steps[0])
    script.until(lambda: all(flow.lit for flow in flows.values()))
    flow = next(iter(flows.values()))
    number = flow.number
    script.darken()
    script.until(lambda: flow.number != number and flow.lit)
    assert "is gone" in flow.reason
    assert (
        script.plan.steps[0].cross_connects[SWITCHES[0]]
        <= script.carried()[SWITCHES[0]]
    )


def test_a_wss_that_hangs_holds_up_nobody_who_comes_and_asks(
    run: Run, script: Script
) -> None:
    flows = script.open(0, script.steps[0])
    script.until(lambda: all(flow.lit for flow in flows.values()))
    later = script.open(1, script.steps[1])
    before, after = (step.cross_connects for step in script.plan.steps[:2])
    hung = next(name for name in SWITCHES if not after[name] <= before[name])
    pid = json.loads((run.state / f"{hung}.ready").read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    script.stack.callback(os.kill, pid, signal.SIGCONT)
    for (sender, _), flow in flows.items():
        script.workers[sender].close(flow)
    script.until(lambda: script.conductor.document().setting is None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        # The driver waits 5 s for an answer.
        other.settimeout(2.0)
        other.connect(str(script.sockets[NODES[0]]))
        other.send(b"{}")
        assert b"error" in other.recv(4096)
    assert not any(flow.lit for flow in later.values())
    os.kill(pid, signal.SIGCONT)
    script.until(lambda: all(flow.lit for flow in later.values()))


def test_a_new_conductor_serves_what_is_left_first(script: Script) -> None:
    steps = script.steps
    flows = script.open(0, steps[0])
    script.until(lambda: all(flow.lit for flow in flows.values()))
    script.conductor.stop()
    (sender, _), left = flows.popitem()
    for (done, _), flow in flows.items():
        script.workers[done].close(flow)
    later = script.open(1, steps[1])
    script.begin(resumed=True)
    script.until(lambda: left.lit)
    assert not any(flow.lit for flow in later.values())
    script.workers[sender].close(left)
    script.until(lambda: all(flow.lit for flow in later.values()))
