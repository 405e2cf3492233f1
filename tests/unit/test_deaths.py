"""Deaths of a lab's processes: noted when they happen, read on by a run, and whose doing they were."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from ringlight.experiments.backends.emulation.lab import (
    RESTARTS,
    WITHOUT_SWITCH_S,
    EmulatedLab,
)
from ringlight.experiments.backends.emulation.run_state import (
    LabJob,
    LabRun,
    is_planned,
)
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.record.events import JobState
from ringlight.experiments.record.lab_records import ProcessBack, ProcessEnded
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed import deaths, services, supervision
from ringlight.testbed.addresses import Addresses
from ringlight.testbed.deaths import Death, DeathLog, Deaths, ProcessKind
from ringlight.testbed.descriptors import too_few
from ringlight.testbed.emulation import testbed as emulated
from ringlight.testbed.emulation.docker_hosts import docker_reason
from ringlight.testbed.emulation.settings import KeptController, Settings
from ringlight.testbed.emulation.vswitchd import VswitchdWatch
from ringlight.testbed.lab import Lab
from ringlight.testbed.readiness import check_ready
from ringlight.testbed.supervision import Supervisor
from tests.simulated import experiment
from tests.unit.fabrics import six_gpus


def _wait(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def test_each_end_and_each_return_is_read_once_with_how_and_whose_doing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.01)
    deaths, log = Deaths(tmp_path / "deaths"), DeathLog(tmp_path / "deaths")
    assert log.read() == []
    kept = Supervisor(
        "meter",
        {"a": _sleeper},
        lambda name, *_: deaths.back("meter", name),
        on_end=partial(deaths.ended, "meter"),
    )
    try:
        os.kill(kept.lives()["a"].pid, 9)
        _wait(lambda: kept.lives()["a"].restarts == 1)
        kept.kill("a")
        kept.let_start("a")
        _wait(lambda: kept.lives()["a"].restarts == 2)
    finally:
        kept.stop()
    found = log.read()
    assert [(one.kind, one.name, one.how, one.asked) for one in found] == [
        ("meter", "a", "killed by SIGKILL", False),
        ("meter", "a", None, False),
        ("meter", "a", "killed by SIGKILL", True),
        ("meter", "a", None, False),
    ]
    assert [one.t for one in found] == sorted(one.t for one in found)
    assert log.read() == []


def test_a_line_that_is_being_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "deaths"
    log = DeathLog(file)
    Deaths(file).ended("O-NIC agent", "n1", "exit code 1", False)
    line = file.read_bytes()
    file.write_bytes(line + line[:20])
    assert len(log.read()) == 1
    file.write_bytes(line + line)
    assert len(log.read()) == 1


KILLS = "events: [{when: {at: 1 s}, do: kill, target: controller, back_after: 1 s}]"


@pytest.mark.parametrize(
    ("kind", "planned"), [("controller", True), ("applications", False)]
)
def test_only_what_an_event_of_the_run_killed_was_planned(
    kind: ProcessKind, planned: bool
) -> None:
    (plan,) = experiment(KILLS).plans
    assert (
        is_planned(plan, Death(1.0, kind, kind, "killed by SIGKILL", asked=True))
        is planned
    )


def lab_of_run(more: str, processes: object = None) -> EmulatedLab:
    """An emulated lab in a run, of which nothing is there but what notes deaths."""
    (plan,) = experiment(more).plans
    lab = EmulatedLab.__new__(EmulatedLab)
    nobody: Any = SimpleNamespace(plan=plan, away={}, killed=False)
    told: Any = processes
    lab._now, lab._records, lab.processes = nobody, [], told
    lab._facts = {"controller_restarts": 0}
    return lab


@pytest.mark.parametrize(
    ("asked", "event", "planned"), [(1, KILLS, True), (0, KILLS, False), (1, "", False)]
)
def test_a_death_is_on_record_with_its_return_and_planned_only_if_the_run_asked_for_it(
    asked: int, event: str, planned: bool, tmp_path: Path
) -> None:
    """A stranger may kill what an event of the run kills later, and the fault service what no event does."""
    file = tmp_path / "deaths"
    lab = lab_of_run(
        event,
        SimpleNamespace(check=lambda: None, astray=list, ended=DeathLog(file).read),
    )
    Deaths(file).ended("meter", "avg0", "killed by SIGSEGV", False)
    lab._tend()
    lab._note_deaths(
        [Death(2.0, "controller", "controller", "killed by SIGKILL", asked=bool(asked))]
    )
    lab._note_back("controller", "controller", 2.5)
    meter, controller, back = lab._records
    assert isinstance(meter, ProcessEnded)
    assert (meter.kind, meter.name, meter.how) == (
        "meter",
        "avg0",
        "killed by SIGSEGV",
    )
    assert not meter.planned
    assert isinstance(controller, ProcessEnded)
    assert (controller.t, controller.kind, controller.planned) == (
        2.0,
        "controller",
        planned,
    )
    assert isinstance(back, ProcessBack)
    assert (back.kind, back.away_s) == ("controller", 0.5)


def test_without_open_vswitch_a_run_ends_and_says_what_helps() -> None:
    lab, dead = (
        lab_of_run(""),
        Death(time.monotonic(), "Open vSwitch", "ovs-vswitchd", "killed"),
    )
    lab._note_deaths([dead])
    lab._note_deaths([])
    lab._run.away[dead.kind, dead.name] -= WITHOUT_SWITCH_S
    with pytest.raises(
        BackendError, match=r"Open vSwitch has ended, .* again with: ringlight setup"
    ):
        lab._note_deaths([])


def test_a_controller_that_ends_again_and_again_ends_the_run() -> None:
    lab = lab_of_run("")
    ends = Death(2.0, "controller", "controller", "killed by SIGKILL")
    lab._note_deaths([ends] * RESTARTS)
    assert lab._facts["controller_restarts"] == RESTARTS
    with pytest.raises(BackendError, match=f"ended for the {RESTARTS + 1}th time"):
        lab._note_deaths([ends])


def test_a_controller_is_asked_again_once_it_is_started_again() -> None:
    lab = lab_of_run(KILLS)
    lab._note_deaths(
        [Death(2.0, "controller", "controller", "killed by SIGKILL", asked=True)]
    )
    assert lab._run.killed
    lab._note_deaths([Death(2.5, "controller", "controller")])
    assert not lab._run.killed
    assert not any(isinstance(record, ProcessBack) for record in lab._records)
    lab._note_back("controller", "controller", 3.0)
    assert lab._records[-1].away_s == 1.0


def test_what_a_testbed_keeps_running_is_noted_when_it_ends_and_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.01)
    fabric = build_fabric(FabricSpec.model_validate(six_gpus()))
    testbed = emulated.Testbed(Settings(Lab("zz9z"), fabric, tmp_path))
    kept = testbed.processes.supervise(
        "O-NIC agent", "the agent of O-NIC", {"g0": _sleeper}, "onics"
    )
    try:
        os.kill(kept.lives()["g0"].pid, 9)
        _wait(lambda: kept.lives()["g0"].restarts == 1)
    finally:
        kept.stop()
    found = [
        (one.kind, one.name, one.how) for one in DeathLog(tmp_path / deaths.FILE).read()
    ]
    assert found == [
        ("O-NIC agent", "g0", "killed by SIGKILL"),
        ("O-NIC agent", "g0", None),
    ]


def test_the_controller_of_a_standing_lab_is_started_again_and_its_new_process_is_in_the_inventory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.01)
    keeps = KeptController(("sleep", "60"), "127.0.0.1:1", tmp_path / "log")
    fabric = build_fabric(FabricSpec.model_validate(six_gpus()))
    testbed = emulated.Testbed(Settings(Lab("zz9z"), fabric, tmp_path, keeps=keeps))
    testbed._launch_controller()
    kept = testbed.controller
    assert kept is not None
    try:
        first = kept.lives()["controller"].pid
        testbed.inventory = {"processes": {"controller": {"pid": first}}}
        os.kill(first, 9)
        _wait(lambda: (tmp_path / "inventory.json").exists())
        found = json.loads((tmp_path / "inventory.json").read_text())["processes"][
            "controller"
        ]
        assert found == {"pid": kept.lives()["controller"].pid, "restarts": 1}
        assert found["pid"] != first
    finally:
        testbed.stop()


def test_open_vswitch_is_named_when_it_ends_and_when_its_monitor_has_started_it_again(
    tmp_path: Path,
) -> None:
    pid_file, log_file = tmp_path / "pid", tmp_path / "log"
    log = DeathLog(tmp_path / "deaths")
    first, second = _sleeper(), _sleeper()
    try:
        pid_file.write_text(f"{first.pid}\n")
        died = f"pid {first.pid} died, killed (Segmentation fault), core dumped, restarting"
        log_file.write_text(f"2026|00003|daemon_unix(monitor)|ERR|1 crashes: {died}\n")
        again: list[int] = []
        with VswitchdWatch(
            Deaths(tmp_path / "deaths"), lambda: again.append(1), pid_file, log_file
        ):
            assert log.read() == []
            first.kill()
            first.wait(5)
            found: list[Death] = []
            _wait(lambda: found.extend(log.read()) or found)
            assert [(one.kind, one.how) for one in found] == [
                ("Open vSwitch", "killed (Segmentation fault), core dumped")
            ]
            pid_file.write_text(f"{second.pid}\n")
            _wait(lambda: found.extend(log.read()) or len(found) == 2)
            assert found[1].how is None
            _wait(lambda: again == [1])
    finally:
        for process in (first, second):
            process.kill()
            process.wait(5)


def test_too_few_descriptors_are_named_and_not_taken_for_a_service_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(services, "check_privileges", lambda: None)
    monkeypatch.setattr(services.socket, "socket", none_left)
    with pytest.raises(
        Exception, match=r"^too few file descriptors: .* ulimit -n \d+$"
    ) as raised:
        check_ready("docker", Addresses())
    assert "not running" not in str(raised.value)


def test_too_few_descriptors_are_found_however_deep_they_lie() -> None:
    inner = OSError(errno.EMFILE, "Too many open files")
    wrapped = requests.ConnectionError(ConnectionError("Connection aborted.", inner))
    assert docker_reason(wrapped).startswith("too few file descriptors")
    chained = RuntimeError("no answer")
    chained.__cause__ = inner
    assert too_few(chained) is not None
    assert too_few(OSError(errno.ECONNREFUSED, "Connection refused")) is None


@pytest.mark.parametrize("seen", [False, True])
def test_a_recovery_between_two_looks_is_on_record_as_one_that_was_seen(
    *, seen: bool
) -> None:
    lab = lab_of_run("")
    (plan,) = lab._now.plan.jobs[:1]
    job = LabJob(plan, "own", {}, state="RUNNING", released=True, gpus=["g0", "g1"])
    lost = {"t": 2.0, "event": "lost", "rank": 1, "gpu": "g1", "reason": ""}
    recovered = {"t": 2.14, "event": "recovered", "iteration": 3, "ranks": ["g0", "g2"]}
    answers = [
        ("RECOVERING", ["g0", "g1"], [lost]),
        ("READY", ["g0", "g2"], [recovered]),
    ]
    if not seen:
        answers = [("RUNNING", ["g0", "g2"], [lost, recovered])]
    answers += [("RUNNING", ["g0", "g2"], []), ("SUCCEEDED", ["g0", "g2"], [])]
    for state, gpus, events in answers:
        documents: dict[str, Any] = {
            "/v1/jobs/own": {
                "state": state,
                "ranks": [{"gpu": g} for g in gpus],
                "t_ended": 9.0,
                "error": None,
            },
            "/v1/jobs/own/events": {"cursor": 0, "events": events},
        }
        api: Any = SimpleNamespace(
            get=lambda path, documents=documents, **_: documents[path]
        )
        lab._api = api
        lab._look_at(job)
    told = [
        (one.t, one.state, one.gpus)
        for one in lab._records
        if isinstance(one, JobState)
    ]
    assert told == [
        (2.0, "RECOVERING", ["g0", "g1"]),
        (2.14, "RUNNING", ["g0", "g2"]),
        (9.0, "SUCCEEDED", ["g0", "g2"]),
    ]


def test_a_job_is_looked_at_often_only_while_an_event_waits_for_its_iteration() -> None:
    when = "when: {job: red, iteration: 2}"
    event = f"events: [{{name: later, {when}, do: kill, target: controller, back_after: 1 s}}]"
    (plan,) = experiment(event).plans
    job = LabJob(plan.jobs[0], "1", {}, released=True, state="RUNNING")
    other = replace(job, plan=replace(job.plan, name="another"))
    run = LabRun(plan, *([None] * 4), jobs={"red": job})  # type: ignore[arg-type]
    assert job.triggers(run.to_come)
    assert not other.triggers(run.to_come)
    assert not replace(job, state="SUCCEEDED").triggers(run.to_come)
    run.performed.add("later")
    assert not job.triggers(run.to_come)
