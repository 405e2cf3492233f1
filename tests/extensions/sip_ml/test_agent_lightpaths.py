"""What the server agent refuses of standing light, before anything is written."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ringlight.containers.worker.posted import Posted
from ringlight.fabric.building import build_fabric
from ringlight.fabric.keys import plugged
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.agent.http import LightSpec
from ringlight.testbed.emulation.agent.lightpaths import Lightpaths, _Posting
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.onic.tables import PeerLight, Transmitter


def interconnect(**values: Any) -> Fabric:
    spec = {"interconnect": {"gpus": 4, "gpu": "test", **values}}
    return plugged(build_fabric(FabricSpec.model_validate(spec)))


PLANES = interconnect(kind="parallel-ocs", rate="100 Gbit/s", switches=4)
RING = interconnect(
    kind="demand-ring",
    rate="100 Gbit/s",
    wavelength="25 Gbit/s",
    interval="5 ms",
    dark="1 ms",
)
#: The same O-NICs, as if their light did not stand.
ASKING = replace(
    PLANES,
    onics={gpu: replace(onic, standing=False) for gpu, onic in PLANES.onics.items()},
)
SWITCH = build_fabric(
    FabricSpec.model_validate(
        {
            "servers": {"s": {"gpus": {"g0": "test", "g1": "test"}}},
            "packet_switches": {"tor": {"ports": 2}},
            "links": [
                {"ends": [f"g{i}", f"tor:{i + 1}"], "rate": "1 Gbit/s"}
                for i in range(2)
            ],
        }
    )
)


def ip(fabric: Fabric, gpu: str) -> str:
    return fabric.gpus[gpu].ip


def lit(*paths: tuple[int, int | None]) -> PeerLight:
    return PeerLight(True, tuple(Transmitter(*path) for path in paths))


@pytest.mark.parametrize(
    ("fabric", "gpu", "light", "status", "said"),
    [
        (PLANES, "g9", {}, 404, "GPU g9 has no O-NIC"),
        (SWITCH, "g0", {}, 404, "GPU g0 has no O-NIC"),
        (
            ASKING,
            "g0",
            {},
            409,
            "the light of O-NIC g0 does not stand; PUT /v1/onics/g0/transmit sets it",
        ),
        (
            PLANES,
            "g0",
            {"10.9.9.9": lit()},
            422,
            "O-NIC g0: 10.9.9.9 is the address of no other GPU",
        ),
        (
            PLANES,
            "g0",
            {ip(PLANES, "g0"): lit()},
            422,
            f"{ip(PLANES, 'g0')} is the address of no other GPU",
        ),
        (
            PLANES,
            "g0",
            {ip(PLANES, "g1"): lit((7, None))},
            422,
            "O-NIC g0: there is no port 7 (0..3)",
        ),
        (
            RING,
            "g0",
            {ip(RING, "g1"): lit((2, 0))},
            422,
            "O-NIC g0: there is no port 2 (0..1)",
        ),
        (
            RING,
            "g0",
            {ip(RING, "g1"): lit((0, 2))},
            422,
            "O-NIC g0: there is no wavelength 2 (0..1)",
        ),
        (
            RING,
            "g0",
            {ip(RING, "g1"): lit((1, None))},
            422,
            "O-NIC g0: port 1: which wavelength (0..1)?",
        ),
        (
            PLANES,
            "g0",
            {ip(PLANES, "g1"): lit((1, 0))},
            422,
            "O-NIC g0: port 1 has no wavelengths, and 0 is named",
        ),
        (
            PLANES,
            "g0",
            {ip(PLANES, "g2"): lit(*[(0, None)] * 70)},
            422,
            f"O-NIC g0: {ip(PLANES, 'g2')} has 70 lightpaths, at most 64",
        ),
        (
            RING,
            "g0",
            {ip(RING, "g1"): lit((1, 0), (1, 1), (1, 0))},
            422,
            "O-NIC g0: port 1 wavelength 0 is given twice",
        ),
        (
            PLANES,
            "g0",
            {ip(PLANES, "g1"): lit((2, None)), ip(PLANES, "g2"): lit((2, None))},
            422,
            "O-NIC g0: port 2 is given twice",
        ),
    ],
)
def test_light_that_an_onic_cannot_have_is_refused_in_one_line(
    tmp_path: Path,
    fabric: Fabric,
    gpu: str,
    light: dict[str, PeerLight],
    status: int,
    said: str,
) -> None:
    lightpaths = Lightpaths(fabric, tmp_path)
    with pytest.raises(AgentError) as refused:
        lightpaths.replace({gpu: light})
    assert refused.value.status == status
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_one_wrong_table_and_none_is_written(tmp_path: Path) -> None:
    """Maps are not even there: what is right would be refused with 500."""
    right, wrong = (
        {ip(PLANES, "g1"): lit((0, None))},
        {ip(PLANES, "g1"): lit((4, None))},
    )
    with pytest.raises(AgentError, match="there is no port 4"):
        Lightpaths(PLANES, tmp_path).replace({"g0": right, "g2": wrong})
    with pytest.raises(
        AgentError, match=r"O-NIC g0: lightpaths: .*No such file or directory"
    ) as failed:
        Lightpaths(PLANES, tmp_path).replace({"g0": right})
    assert failed.value.status == 500


def test_a_worker_where_no_light_stands_may_post_all_the_same(tmp_path: Path) -> None:
    lightpaths = Lightpaths(SWITCH, tmp_path)
    lightpaths.begin("g0", tmp_path, ["10.82.0.1", "10.82.0.2"])
    assert lightpaths.traffic()["gpus"] == {}
    lightpaths.end("g0")


@pytest.mark.parametrize(
    "raw",
    [
        {"paths": []},
        {"lit": True, "paths": [{"port": -1}]},
        {"lit": True, "paths": [{"wavelength": 0}]},
        {"lit": True, "paths": [{"port": 0, "wavelength": -1}]},
        {"lit": True, "colour": 1},
    ],
)
def test_what_is_no_light_is_not_read(raw: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LightSpec.model_validate(raw)


def test_turns_that_a_worker_ends_are_told_at_once(tmp_path: Path) -> None:
    lightpaths = Lightpaths(PLANES, tmp_path)
    addresses = tuple(gpu.ip for gpu in PLANES.gpus.values())
    lightpaths._posting["g0"] = _Posting(tmp_path / "posted", addresses, {})
    # It has not begun.
    assert lightpaths.turns({}, 0.0) == {"g0": 0}
    posted = Posted(tmp_path / "posted", len(addresses))
    posted.add(3, 1000)
    timer = threading.Timer(0.05, posted.turned, (2,))
    timer.start()
    begun = time.monotonic()
    assert lightpaths.turns({"g0": 0}, 20.0) == {"g0": 2}
    assert time.monotonic() - begun < 10
    assert lightpaths.turns({"g0": 2}, 0.01) == {"g0": 2}
    timer.join()
