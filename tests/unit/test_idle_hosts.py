"""Which workers are told of the GPUs that no job holds, without a lab."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed.emulation.agent.hosts import IdleHosts

FABRIC = {
    "servers": {"s": {"gpus": dict.fromkeys(("n0", "n1", "n2"), "t")}},
    "packet_switches": {"tor": {"ports": 3}},
    "links": [
        {"ends": [f"n{i}", f"tor:{i + 1}"], "rate": "1 Gbit/s"} for i in range(3)
    ],
}


class Network:
    """Notes who was introduced to whom."""

    def __init__(self) -> None:
        self.introduced: list[tuple[str, int]] = []
        self.plugged = False

    def is_plugged(self, _gpu: str) -> bool:
        return True

    def add_idle(self, gpu: str) -> Any:
        return SimpleNamespace(gpu=gpu, terminate=lambda: None)

    def introduce(self, host: Any, others: list[tuple[str, str]]) -> bool:
        if self.plugged:
            self.introduced.append((host.gpu, len(others)))
        return self.plugged

    def nothing(self, *_words: Any) -> None:
        """Ignore what happens to cables."""

    plug = attach = unplug = forget = nothing


class Worker:
    def __init__(self, gpu: str) -> None:
        self.gpu = gpu


def test_a_worker_that_comes_after_the_idle_hosts_is_told_of_them_once() -> None:
    network: Any = Network()
    hosts = IdleHosts(build_fabric(FabricSpec.model_validate(FABRIC)), network)
    hosts.fill(list)
    workers: Any = [Worker("n0"), Worker("n1")]
    hosts.leave(["n0", "n1"])
    # At first they have no NIC yet.
    for plugged in (False, True, True):
        network.plugged = plugged
        hosts.fill(lambda: workers)
    assert network.introduced == [("n0", 2), ("n1", 2)]
