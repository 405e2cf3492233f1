"""Place of an O-NIC, as the testbed's inventory says."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator


class OnicPlace(BaseModel):
    """Sockets and kind of an O-NIC.

    ``flow``: its flow socket as the GPU's worker sees it; None if its light is standing. ``manage`` and
    ``control``: the agent's management socket and address, for an O-NIC with an agent (``tunable``).
    ``directory``: directory of the flow socket, for an O-NIC without an agent (``array``).
    """

    model_config = ConfigDict(extra="allow")
    flow: str | None = None
    transmitters: Literal["tunable", "array"] = "tunable"
    standing: bool = False
    manage: str | None = None
    control: str | None = None
    directory: Path | None = None

    @model_validator(mode="after")
    def _has_its_agent(self) -> OnicPlace:
        if self.standing:
            return self
        if self.flow is None:
            raise ValueError("an O-NIC whose light does not stand needs flow")
        if self.transmitters == "tunable" and (
            self.manage is None or self.control is None
        ):
            raise ValueError(
                "an O-NIC with tunable transmitters needs manage and control"
            )
        if self.transmitters == "array" and self.directory is None:
            raise ValueError(
                "an O-NIC with an array of transmitters needs its directory"
            )
        return self
