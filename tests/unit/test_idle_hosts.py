"""Idle hosts at GPUs: what becomes of them when one cannot be plugged in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ringlight.testbed.emulation.agent.hosts import Failures, IdleHosts
from ringlight.testbed.emulation.agent.launching import Failures as LaunchFailures
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.kernel.build import BuildError
from ringlight.testbed.emulation.kernel.network_errors import NetworkError
from tests.unit.test_controller_rules import FABRIC


class Network:
    """A network whose links' programs cannot be built once it has hosts at two GPUs."""

    def __init__(self, error: Exception) -> None:
        self.error, self.hosts = error, set[str]()

    def is_plugged(self, gpu: str) -> bool:
        return True

    def add_idle(self, gpu: str) -> Any:
        return SimpleNamespace(gpu=gpu, terminate=lambda: None)

    def plug(self, host: Any, others: Any) -> None:
        if len(self.hosts) == 2:
            raise self.error
        self.hosts.add(host.gpu)

    def attach(self, gpus: Any) -> None: ...

    def unplug(self, hosts: Any) -> None:
        self.hosts -= {host.gpu for host in hosts}

    def forget(self, host: Any) -> None: ...


@pytest.mark.parametrize("error", [NetworkError("no room"), BuildError("no compiler")])
def test_none_is_left_when_one_cannot_be_plugged_in(error: Exception) -> None:
    network = Network(error)
    idle = IdleHosts(FABRIC, network)  # type: ignore[arg-type]
    with pytest.raises(AgentError, match=str(error)):
        idle.fill(list)
    assert (network.hosts, idle.gpus()) == (set(), frozenset())
    # Neither does it keep a worker from being removed.
    idle.come_back(list)


def test_workers_fail_by_what_hosts_fail_by() -> None:
    assert set(Failures) < set(LaunchFailures)
