"""What the emulation asks the controller for, job by job, and how a job's ranks changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from ringlight.controller.rest.requests import JobRequest
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.emulation.lab import EmulatedLab
from ringlight.experiments.backends.emulation.requests import (
    job_request,
    only_simulated,
    peer_timeout_s,
)
from ringlight.experiments.backends.emulation.rest import set_circuits
from ringlight.experiments.backends.emulation.run_state import LabJob, goes_on
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import JobState
from ringlight.experiments.runner.timeline import READY_S
from ringlight.workloads.job_settings import LIMITS

HEAD = """
name: small
description: Four GPUs.
scale: {time: 1, payload: 400}
training: {model: resnet50, gradient: 40 MB, compute: 20 ms, batch: 4, iterations: 6}
"""
SWITCH = """
fabric:
  servers: {s0: {gpus: {g0: t, g1: t, g2: t, g3: t}}}
  packet_switches: {tor0: {ports: 4}}
  links:
    - {ends: [g0, "tor0:1"], rate: 4 Gbit/s}
    - {ends: [g1, "tor0:2"], rate: 4 Gbit/s}
    - {ends: [g2, "tor0:3"], rate: 4 Gbit/s}
    - {ends: [g3, "tor0:4"], rate: 4 Gbit/s}
"""


def plan_of(text: str) -> RunPlan:
    (plan,) = parse(HEAD + text, "small.yaml").plans
    return plan


def test_a_number_of_gpus_is_asked_of_packet_switches() -> None:
    check_asked(SWITCH, {})


def check_asked(text: str, where: dict[str, str]) -> None:
    """Check where a number of GPUs is asked for."""
    plan = plan_of(text + "jobs: {red: {gpus: 4}}\n")
    request = job_request(plan, plan.job("red"))
    places = {key: request[key] for key in ("ranks", "gpus", "plane") if key in request}
    assert places == {"gpus": 4, **where}
    assert request["connect_timeout_s"] < READY_S


@pytest.mark.parametrize(
    ("text", "least_s", "most_s"),
    [
        # 2 * 3/4 of 100 kB at 10 Mbit/s are 0.12 s; twice, with all four on one link, 0.96 s.
        (SWITCH, 15.96, 15.97),
        (
            SWITCH
            + "events: [{when: {at: 1 s}, do: kill, target: switch tor0, back_after: 50 s}]\n",
            80.0,
            80.0,
        ),
        (
            SWITCH + "events: [{when: {at: 1 s}, do: cut, target: link g0 tor0:1}]\n",
            60.0,
            60.0,
        ),
        (
            SWITCH + "events: [{when: {at: 1 s}, do: cancel, target: job train}]\n",
            15.96,
            15.97,
        ),
    ],
)
def test_a_worker_waits_for_its_peers_as_long_as_what_happens_needs(
    text: str, least_s: float, most_s: float
) -> None:
    plan = plan_of(text)
    assert least_s <= peer_timeout_s(plan, plan.jobs[0]) <= most_s


def test_a_jobs_ranks_after_losses() -> None:
    begun = [(4, 0)]
    assert goes_on(begun, 4, 5) == begun
    assert goes_on(begun, 3, 5) == [(4, 0), (3, 5)]
    assert goes_on([(4, 0), (3, 5)], 2, 9) == [(4, 0), (3, 5), (2, 9)]
    # Lost again before its first new state, it goes on from the one before.
    assert goes_on([(4, 0), (3, 5)], 2, 5) == [(4, 0), (2, 5)]
    assert goes_on(begun, 3, 0) == [(3, 0)]


def test_groups_of_a_collective_are_those_of_the_jobs_ranks() -> None:
    """Not of any number of ranks: groups of two do not divide one."""
    job: dict[str, Any] = {"name": "red", "collective": "hierarchical-ring-group-2"}
    job |= {"gradient_bytes": 96400, "compute_s": 0.1, "iterations": 2}
    assert JobRequest.model_validate({**job, "gpus": 4}).selection == 4
    for ranks in ({"gpus": 3}, {"ranks": ["g0", "g1", "g2"]}):
        with pytest.raises(ValidationError, match="3 ranks cannot have groups of 2"):
            JobRequest.model_validate(job | ranks)


def test_circuits_stand_whichever_end_is_named_first() -> None:
    class Lit:
        def put(self, path: str, body: Any) -> Any:
            return {}

        def get(self, path: str) -> Any:
            return {"circuits": [{"ends": ["r0:3", "r6:2"]}, {"ends": ["g0", "r0:1"]}]}

    api: Any = Lit()
    set_circuits(api, [("r6:2", "r0:3"), ("r0:1", "g0")])
    with pytest.raises(BackendError, match="missing r1:2-r0:3"):
        set_circuits(api, [("r1:2", "r0:3"), ("r0:1", "g0")])


ELSEWHERE = """
fabric:
  servers: {s0: {gpus: {g0: t, g1: t}}}
  packet_switches: {tor0: {ports: 2}}
  optical_switches: {ocs0: {size: 4, driver: DRIVER, address: "10.0.0.5:3083"}}
  links: [{ends: [g0, "tor0:1"], rate: 4 Gbit/s}, {ends: [g1, "tor0:2"], rate: 4 Gbit/s}LINK]
jobs: {red: {ranks: [g0, g1]}}
"""
PLUGGED = ', {ends: ["tor0:2", "ocs0:1"], rate: 4 Gbit/s}'


@pytest.mark.parametrize(
    ("driver", "link", "why"),
    [
        ("scpi", "", None),
        (
            "scpi",
            PLUGGED,
            "fabric.optical_switches.ocs0.address: the testbed's packets do not get to a switch that is "
            "elsewhere; ringlight up drives its light",
        ),
    ],
)
def test_a_switch_that_is_elsewhere_passes_no_packets(
    driver: str, link: str, why: str | None
) -> None:
    text = HEAD + ELSEWHERE.replace("DRIVER", driver).replace("LINK", link)
    text = text.replace("tor0: {ports: 2}", "tor0: {ports: 3}").replace(
        '"tor0:2", "ocs0', '"tor0:3", "ocs0'
    )
    (plan,) = parse(text, "small.yaml").plans
    assert EmulationBackend("namespace").refuses(plan) == why
    # Nothing is sent over it in virtual time but what its profile says.
    assert SimulationBackend().refuses(plan) is None


@pytest.mark.parametrize(
    ("key", "figure", "said"),
    [
        (
            "gradient_bytes",
            LIMITS["gradient_bytes"].most,
            "training: {gradient: 500 GB}",
        ),
        ("compute_s", LIMITS["compute_s"].most, "training: {compute: 7200 s}"),
        ("iterations", LIMITS["iterations"].most, "training: {iterations: 1000001}"),
        ("batch", LIMITS["batch"].most, "training: {batch: 100001}"),
        ("seed", LIMITS["seed"].most, "training: {seed: 4294967296}"),
        (
            "learning_rate",
            LIMITS["learning_rate"].most,
            "training: {learning_rate: 1001}",
        ),
        ("beacon_interval_s", LIMITS["beacon_interval_s"].most, "beacon: 61 s"),
    ],
)
def test_figures_that_the_controller_does_not_take_are_told_before_a_lab_is_built(
    key: str, figure: float, said: str
) -> None:
    usual = {
        "name": "red",
        "gpus": 2,
        "gradient_bytes": 9640,
        "compute_s": 0.0,
        "iterations": 1,
    }
    JobRequest.model_validate({**usual, key: figure})
    with pytest.raises(ValidationError):
        JobRequest.model_validate({**usual, key: figure + 4})
    plan = plan_of(SWITCH + f"jobs: {{red: {{ranks: [g0, g1], {said}}}}}\n")
    why = EmulationBackend("namespace").refuses(plan)
    assert why is not None
    named = said.replace(": {", ".").partition(":")[0]
    assert why.startswith(
        f"jobs.red.{named.removeprefix('training.') if key == 'iterations' else named}: "
    )
    assert "a worker takes" in why
    assert SimulationBackend().refuses(plan) is None


def test_a_job_that_went_on_is_told_to_run_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its event may be there while the controller still says that it is let go."""
    states, told = iter(["READY", "RUNNING", "SUCCEEDED"]), list[str]()
    lab = EmulatedLab.__new__(EmulatedLab)
    lab._api = SimpleNamespace(  # type: ignore[assignment]
        get=lambda _: {
            "state": next(states),
            "ranks": [{"gpu": "g0"}],
            "t_ended": 1.0,
            "error": None,
        }
    )
    monkeypatch.setattr(EmulatedLab, "_events", lambda *_: True)
    monkeypatch.setattr(
        EmulatedLab, "_tell_state", lambda _, job, *__: told.append(job.state)
    )
    plan: Any = SimpleNamespace(guest=None)
    job = LabJob(plan, "1", {}, state="RUNNING", released=True)
    for _ in range(3):
        lab._look_at(job)
    assert told == ["SUCCEEDED"]


def test_a_recovery_is_told_once_that_ends_between_state_and_events() -> None:
    """The controller says that the job recovers; the events that are asked for next, that it has."""
    states = iter(["RUNNING", "RECOVERING", "RUNNING", "SUCCEEDED"])
    recovered = {"event": "recovered", "t": 2.0, "iteration": 3, "ranks": ["g0", "g2"]}
    events = iter(
        [[], [{"event": "lost", "t": 1.0, "rank": 1, "gpu": "g1"}, recovered], [], []]
    )

    def get(path: str, **_: object) -> dict[str, Any]:
        if path.endswith("/events"):
            return {"cursor": 1, "events": next(events)}
        return {
            "state": next(states),
            "ranks": [{"gpu": "g0"}],
            "t_ended": 3.0,
            "error": None,
        }

    lab = EmulatedLab.__new__(EmulatedLab)
    lab._api = SimpleNamespace(get=get)  # type: ignore[assignment]
    lab._records, lab._now = [], SimpleNamespace(plan=SimpleNamespace(name="run"))  # type: ignore[assignment]
    plan: Any = SimpleNamespace(guest=None, name="red")
    job = LabJob(plan, "1", {}, state="READY", released=True)
    for _ in range(4):
        lab._look_at(job)
    told = [record.state for record in lab._records if isinstance(record, JobState)]
    assert told == ["RUNNING", "RECOVERING", "RUNNING", "SUCCEEDED"]


@pytest.mark.parametrize(("latency", "refused"), [("0 s", False), ("1 us", True)])
def test_a_latency_of_none_is_emulated_as_if_it_were_not_given(
    latency: str, refused: bool
) -> None:
    why = (
        "costs: only a simulation counts them; here a step costs what it costs"
        if refused
        else None
    )
    jobs = "jobs: {red: {gpus: 4}}\narms: {a: {}}\n"
    (plan,) = parse(
        f"{HEAD}{SWITCH}{jobs}costs: {{latency: {latency}}}\n", "small.yaml"
    ).plans
    assert only_simulated(plan) == why
