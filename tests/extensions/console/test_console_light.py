"""What pings over the light of O-NICs say, and when an echo counts as acknowledged, without a lab."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ringlight.controller.onic.agent import Agent
from ringlight.controller.onic.agent_settings import AgentSettings
from ringlight.extensions.console import light_echoes, measures
from ringlight.extensions.console.measures import Pinged
from ringlight.fabric.building import build_fabric
from ringlight.fabric.keys import plugged
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed.emulation.onic.tables import Transmitter
from tests.null_onic import NullLaser, NullRoutes


def check_light_is_called_by_its_port_and_colour_and_a_job_makes_some(
    section: dict[str, Any],
    source: str,
    target: str,
    transmitter: Transmitter,
    name: str,
    ranks: str,
) -> None:
    fabric = plugged(build_fabric(FabricSpec.model_validate(section)))
    assert light_echoes.named(fabric, source, transmitter) == name
    assert light_echoes.remedy(fabric, source, target).endswith(
        f": ringlight job submit light --ranks {ranks} --hold"
    )


@pytest.fixture
def ends() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            yield near, far


def test_an_echo_is_over_when_all_of_it_is_acknowledged(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    near, far = ends
    took = light_echoes.acknowledged_after(near, far)
    assert took is not None
    assert 0 < took < light_echoes.ECHO_S
    assert len(far.recv(1000)) == light_echoes.ECHO_BYTES


@contextmanager
def agents(folder: Path, *gpus: str) -> Iterator[dict[str, Agent]]:
    """The agent of each GPU's O-NIC, with lasers that are a dictionary."""
    made = {
        gpu: Agent(
            AgentSettings(gpu, folder / gpu, ("127.0.0.1", 0)),
            NullLaser(),
            NullRoutes(),
        )
        for gpu in gpus
    }
    threads = [threading.Thread(target=agent.run) for agent in made.values()]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        for agent in made.values():
            agent.stop()
        for thread in threads:
            thread.join(10)


def tell(folder: Path, gpu: str, peers: dict[str, Any]) -> None:
    """Give an agent its wavelength map."""
    with socket.socket(socket.AF_UNIX) as manage:
        manage.settimeout(10)
        manage.connect(str(folder / gpu / "manage.sock"))
        request = {"op": "set_map", "job": "held", "version": 1, "peers": peers}
        manage.sendall(json.dumps(request).encode() + b"\n")
        assert json.loads(manage.makefile().readline())["ok"]


def test_lines_of_pings() -> None:
    assert measures.line(Pinged("a", "b", 0.0005)) == "a -> b: 0.50 ms"
    assert measures.line(Pinged("a", "b", None)) == "a -> b: no answer"
    lit = Pinged("a", "b", 0.0005, "a:0 λ1 into w:1", 0.002)
    assert (
        measures.line(lit) == "a -> b: 0.50 ms over a:0 λ1 into w:1, lit after 2.00 ms"
    )
    pairs = {("a", "b"): lit, ("b", "a"): Pinged("b", "a", 0.001)}
    assert measures.by_light(pairs) == (
        "*** 1 of 2 took light; 1 took the control network, as no light led there"
    )
    assert measures.by_light({("a", "b"): lit}) == "*** 1 of 1 took light"
