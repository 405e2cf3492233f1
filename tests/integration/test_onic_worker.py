"""Worker processes and agents of four O-NICs, over loopback: no root, the lasers are a dictionary."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ringlight.containers.worker.reference import train_in_one_process
from ringlight.containers.worker.spec import parse_spec
from ringlight.controller.onic.agent import Agent
from ringlight.controller.onic.agent_settings import FLOW_SOCKET, AgentSettings
from tests.integration.test_onic_agent import TIMES, WAIT_S, Light, manage
from tests.null_onic import NullRoutes
from tests.unit.test_training import Crew, ended, of_kind

HOST = "127.83.8.1"
#: Each pair that differs in bit k has light by port k, which one wavelength is enough for.
NODES = ("n0", "n1", "n2", "n3")
WAVELENGTH = 1


class Agents:
    """One agent per node, each in a thread."""

    def __init__(self, root: Path, ips: tuple[str, ...]) -> None:
        self.light = Light()
        self._root, self._ips = root, ips
        self._agents = [self._agent(index, (HOST, 0)) for index in range(len(NODES))]
        self._threads: dict[int, threading.Thread] = {}
        for index in range(len(NODES)):
            self._threads[index] = self._run(self._agents[index])

    def directory(self, index: int) -> Path:
        return self._root / NODES[index]

    def set_maps(self) -> None:
        for index in range(len(NODES)):
            peers = {}
            for own_port in (0, 1):
                peer = index ^ (1 << own_port)
                host, port = self._agents[peer].address
                entry = {
                    "port": own_port,
                    "wavelength": WAVELENGTH,
                    "agent": f"{host}:{port}",
                }
                peers[self._ips[peer]] = entry
            assert manage(
                self.directory(index), op="set_map", job="j", version=1, peers=peers
            )["ok"]

    def ask_all(self, **request: Any) -> list[dict[str, Any]]:
        answers = [
            manage(self.directory(index), **request) for index in range(len(NODES))
        ]
        assert all(answer["ok"] for answer in answers)
        return answers

    def restart(self, index: int) -> None:
        """The agent ends and a new one takes its place; its map is in its file."""
        address = self._agents[index].address
        self._end(index)
        time.sleep(0.1)
        self._agents[index] = self._agent(index, address)
        self._threads[index] = self._run(self._agents[index])

    def stop(self) -> None:
        for index in range(len(self._agents)):
            self._end(index)

    def _end(self, index: int) -> None:
        self._agents[index].stop()
        self._threads[index].join(WAIT_S)
        assert not self._threads[index].is_alive()

    def _agent(self, index: int, listen: tuple[str, int]) -> Agent:
        settings = AgentSettings(
            NODES[index], self.directory(index), listen, times=TIMES, allow_faults=True
        )
        return Agent(
            settings, self.light.laser(NODES[index], self._target), NullRoutes()
        )

    @staticmethod
    def _run(agent: Agent) -> threading.Thread:
        thread = threading.Thread(target=agent.run)
        thread.start()
        return thread

    @staticmethod
    def _target(node: str, port: int, wavelength: int) -> str:
        """Which node's receiver a laser lights."""
        assert wavelength == WAVELENGTH
        return NODES[NODES.index(node) ^ (1 << port)]


@contextmanager
def training(
    directory: Path, subnet: int, iterations: int
) -> Iterator[tuple[Crew, Agents]]:
    workers = Crew(
        directory,
        subnet,
        len(NODES),
        collective="halving-doubling",
        iterations=iterations,
    )
    with ExitStack() as stack:
        agents = Agents(directory, parse_spec(workers.specs[0]).peers)
        stack.callback(agents.stop)
        agents.set_maps()
        stack.enter_context(ended(workers))
        for rank, spec in enumerate(workers.specs):
            spec |= {
                "onic": str(agents.directory(rank) / FLOW_SOCKET),
                "compute_s": 0.005,
            }
        yield workers, agents
    assert not agents.light.collisions
    assert not agents.light.lit


def start(workers: Crew) -> None:
    for rank in range(len(NODES)):
        workers.start(rank)
    workers.wait_for("ready")
    workers.release()


def check_done(workers: Crew) -> None:
    codes = workers.exit_codes()
    assert codes == [0] * len(NODES), [
        of_kind(workers.events(r), "failed") for r in range(len(NODES))
    ]
    expected = train_in_one_process(parse_spec(workers.specs[0]))
    for rank in range(len(NODES)):
        done = of_kind(workers.events(rank), "done")[0]
        assert {key: done[key] for key in expected} == expected


def test_training_under_light(tmp_path: Path) -> None:
    with training(tmp_path, 60, 20) as (workers, agents):
        start(workers)
        check_done(workers)
        for rank, status in enumerate(agents.ask_all(op="status")):
            assert status["counters"]["flows_done"] == 20 * 4
            assert {
                event["flows"] for event in of_kind(workers.events(rank), "iteration")
            } == {4}


def test_training_over_a_bad_control_network(tmp_path: Path) -> None:
    with training(tmp_path, 61, 20) as (workers, agents):
        agents.ask_all(op="emulate", loss=0.05, duplicate=0.05, reorder=0.05, seed=3)
        start(workers)
        check_done(workers)


@pytest.mark.parametrize("index", [0, 3])
def test_an_agent_is_started_anew_while_workers_train(
    tmp_path: Path, index: int
) -> None:
    with training(tmp_path, 62 + index, 60) as (workers, agents):
        start(workers)
        workers.wait_for("iteration")
        agents.restart(index)
        check_done(workers)
        # Its own flows or those to it waited until it was back.
        iterations = [
            e
            for rank in range(len(NODES))
            for e in of_kind(workers.events(rank), "iteration")
        ]
        assert max(event["flow_wait_s"]["longest"] for event in iterations) > 0.05
