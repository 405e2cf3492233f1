"""The testbed's inventory file: addresses of the bridges, optical switches and the server agent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ringlight.controller.errors import StartError
from ringlight.controller.onic.agent_settings import FLOW_SOCKET
from ringlight.controller.onic.place import OnicPlace
from ringlight.fabric.topology import Fabric


class PacketSwitchEntry(BaseModel):
    model_config = ConfigDict(extra="allow")
    dpid: int


class Inventory(BaseModel):
    """Keys of the inventory that the controller needs; the testbed may write more, which its extensions read.

    ``time_dilation`` and ``payload_scale``: the emulated rate of a link is its real rate divided by both.
    """

    model_config = ConfigDict(extra="allow")
    lab: str
    agent: str | None = None
    packet_switches: dict[str, PacketSwitchEntry] = Field(default_factory=dict)
    optical_switches: dict[str, dict[str, Any]] = Field(default_factory=dict)
    onics: dict[str, OnicPlace] = Field(default_factory=dict)
    time_dilation: float = Field(default=1.0, gt=0)
    payload_scale: float = Field(default=1.0, gt=0)

    def flow_sockets(self) -> dict[str, Path]:
        """Return the paths of the flow sockets that the controller serves for O-NICs without an agent, by
        GPU.
        """
        return {
            gpu: place.directory / FLOW_SOCKET
            for gpu, place in self.onics.items()
            if place.transmitters == "array" and place.directory is not None
        }


def read_inventory(path: Path, fabric: Fabric) -> Inventory:
    """Return the inventory in a file. Raises StartError naming the file and what does not fit the fabric."""
    try:
        inventory = Inventory.model_validate(json.loads(path.read_text()))
    except (OSError, json.JSONDecodeError) as error:
        raise StartError(f"{path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise StartError(
            f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from error
    for name, switch in fabric.packet_switches.items():
        entry = inventory.packet_switches.get(name)
        if entry is None:
            raise StartError(f"{path}: packet_switches.{name} is missing")
        if entry.dpid != switch.dpid:
            raise StartError(
                f"{path}: packet_switches.{name}.dpid is {entry.dpid}, not {switch.dpid}"
            )
    for name in fabric.optical_switches:
        if name not in inventory.optical_switches:
            raise StartError(f"{path}: optical_switches.{name} is missing")
    for gpu in fabric.onics:
        place = inventory.onics.get(gpu)
        if place is None:
            raise StartError(f"{path}: onics.{gpu} is missing")
        for key in ("transmitters", "standing"):
            value, expected = getattr(place, key), getattr(fabric.onics[gpu], key)
            if value != expected:
                raise StartError(
                    f"{path}: onics.{gpu}.{key} is {value}, not {expected}"
                )
    return inventory


def wait_for_inventory(
    path: Path, fabric: Fabric, timeout_s: float, stopped: Callable[[], bool]
) -> Inventory | None:
    """Return the inventory once the file exists; None if ``stopped`` turned true first.

    Raises StartError if ``timeout_s`` seconds pass without the file.
    """
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        if stopped():
            return None
        if time.monotonic() > deadline:
            raise StartError(
                f"{path}: no inventory after {timeout_s:g} s; is the testbed running?"
            )
        time.sleep(0.02)
    return read_inventory(path, fabric)
