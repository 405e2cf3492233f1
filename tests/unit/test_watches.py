"""Threads that watch over others outlive what one of those does."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import docker.errors
import httpx
import pytest

from ringlight.controller.errors import UnavailableError
from ringlight.controller.openflow.errors import OpenFlowError, SwitchTimeoutError
from ringlight.controller.openflow.messages import PortStats
from ringlight.controller.packets import stats
from ringlight.controller.packets.stats import Statistics
from ringlight.controller.server_agent import AgentClient
from ringlight.fabric.parts import Port
from ringlight.testbed.emulation.agent.worker import Worker
from ringlight.testbed.emulation.agent.workers import Workers
from ringlight.testbed.emulation.worker_hosts import Outcome, WorkerPlace
from tests.unit.test_controller_circuits import FABRIC


def _wait(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _plane(port_stats: Callable[[int], PortStats]) -> Any:
    """A plane whose switches have one port each."""

    def at_once(
        dpids: Iterable[int], **_: object
    ) -> tuple[dict[int, Any], dict[int, OpenFlowError]]:
        found: dict[int, Any] = {}
        failed: dict[int, OpenFlowError] = {}
        for dpid in dpids:
            try:
                found[dpid] = time.monotonic(), [port_stats(dpid)]
            except OpenFlowError as error:
                failed[dpid] = error
        return found, failed

    return SimpleNamespace(all_port_stats=at_once)


def _dead(directory: Path, name: str, outcome: Callable[[], Outcome]) -> Worker:
    """A running worker whose process has just ended."""
    process = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(process.pid)
    process.wait()
    place = WorkerPlace(name, "j", 0, "g0", directory, ())
    host: Any = SimpleNamespace(pidfd=pidfd, guest=None, place=place, outcome=outcome)
    return Worker(host, "running")


def test_a_worker_whose_end_cannot_be_told_hides_no_other_death(tmp_path: Path) -> None:
    def removed() -> Outcome:
        raise docker.errors.NullResource("Resource ID was not provided")

    args = (FABRIC, MagicMock(), MagicMock(), tmp_path, MagicMock(), MagicMock())
    workers = Workers(*args, command=("x",), image=None)
    first = _dead(tmp_path, "first", removed)
    second = _dead(tmp_path, "second", lambda: Outcome(0, None, False, None, ""))
    try:
        for worker in (first, second):
            workers._roster._workers[worker.place.id] = worker
            workers._wake()
            _wait(worker.exited.is_set)
        assert first.outcome == Outcome(
            None, None, False, "internal error: Resource ID was not provided", ""
        )
        assert second.outcome == Outcome(0, None, False, None, "")
    finally:
        for worker in (first, second):
            os.close(worker.host.pidfd or -1)
        workers._roster._workers.clear()
        workers.close()


def test_an_agent_that_says_no_json_is_away() -> None:
    client = AgentClient("http://agent")
    client.close()
    client._client = httpx.Client(
        transport=httpx.MockTransport(lambda _: httpx.Response(200, text="{")),
        base_url="http://agent",
    )
    with pytest.raises(UnavailableError, match="said no JSON"):
        client.workers(0)
    client.close()


def test_counters_that_cannot_be_used_do_not_end_the_polls() -> None:
    asked: list[int] = []

    def ends() -> Mapping[Port, Port | None]:
        asked.append(1)
        raise ValueError("no light")

    plane = _plane(lambda _: PortStats(*[1] * 9))
    statistics = Statistics(FABRIC, plane, ends)
    statistics.start()
    try:
        _wait(lambda: len(asked) > 3 * len(FABRIC.packet_switches))
    finally:
        statistics.stop()


def test_a_switch_that_does_not_answer_is_left_alone_and_then_asked_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stats, "_BACK_OFF_S", 0.3)
    first, *others = [switch.dpid for switch in FABRIC.packet_switches.values()]
    asked: list[int] = []

    def port_stats(dpid: int) -> PortStats:
        asked.append(dpid)
        if dpid == first and asked.count(first) < 3:
            raise SwitchTimeoutError("it is silent")
        return PortStats(*[1] * 9)

    statistics = Statistics(FABRIC, _plane(port_stats), dict)
    statistics.start()
    try:
        _wait(lambda: asked.count(first) >= 4)
    finally:
        statistics.stop()
    at = [index for index, dpid in enumerate(asked) if dpid == first]
    assert at[0] == 0
    assert asked[at[1] - len(others) : at[1]] == others
    assert asked[at[0] : at[1]].count(others[0]) > 1
    assert statistics.counters()["tor0"]


def test_the_longer_nothing_passes_the_less_often_switches_are_asked() -> None:
    assert [stats.pause_s(quiet_s) for quiet_s in (0.0, 5.0, 10.0, 20.0, 3600.0)] == [
        0.0,
        0.0,
        0.5,
        1.0,
        1.0,
    ]


def test_switches_through_which_nothing_passes_are_asked_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stats, "_QUIET_S", 1.0)
    asked: list[float] = []
    carried = [0]

    def port_stats(_: int) -> PortStats:
        asked.append(time.monotonic())
        return PortStats(1, 0, 0, carried[0], 0, 0, 0, 0, 0)

    def polls(seconds: float) -> int:
        before = len(asked)
        time.sleep(seconds)
        return (len(asked) - before) // len(FABRIC.packet_switches)

    statistics = Statistics(FABRIC, _plane(port_stats), dict)
    statistics.start()
    try:
        time.sleep(1.3)
        idle = polls(1.0)
        carried[0] = 1500
        _wait(lambda: statistics.counters()["tor0"][1].rx_bytes == 1500)
        assert 0 < idle <= 5
        # It would be 2 at most without an end of the pauses, which go on growing to a second.
        assert polls(1.0) > idle
    finally:
        statistics.stop()
