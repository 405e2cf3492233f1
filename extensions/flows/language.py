"""The section ``jobs: {flows: …}``: a file of flows, and the transport that carries them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ringlight.experiments.language.job_sources import Files
from ringlight.experiments.language.plan import Setting
from ringlight.experiments.language.text import at_key
from ringlight.experiments.language.workload_keys import FileName
from ringlight.extensions.flows.flow_file import read_flows
from ringlight.extensions.flows.plan import FlowsPlan
from ringlight.extensions.flows.simulation import SEED
from ringlight.extensions.flows.transport import Transport
from ringlight.fabric.frames import ETHERNET_BYTES, IN_PACKET_BYTES
from ringlight.fabric.values import Duration, Size, Strict


class FlowsSpec(Strict):
    """``file``: CSV with source, destination, bytes and start_s; the other keys are of
    :class:`~ringlight.extensions.flows.transport.Transport`.

    ``packet`` and ``header``: by default 1500 and 64 bytes, and in a scaled run the frames of the emulation.
    """

    file: FileName
    paths: Literal["spray", "pair"] = "pair"
    packet: Size | None = None
    header: Size | None = None
    window: Annotated[int, Field(ge=1)] = Transport.window_packets
    acknowledgement: Size | None = None
    full_packets: bool = False
    nic_delay: Duration = 0.0
    link_delay: Duration = 0.0
    seed: Annotated[int, Field(ge=0)] = SEED

    def plan(self, setting: Setting, files: Files) -> FlowsPlan:
        """Return the plan of a run. Raises ValueError, ``key: what is wrong``."""
        gpus = frozenset(setting.fabric.gpus)
        with at_key("jobs.flows.file"):
            flows = files.read(
                self.file, lambda path: tuple(read_flows(path, gpus)), gpus
            )
            if not flows:
                raise ValueError(f"{self.file} has no flow")
        with at_key("jobs.flows"):
            transport = self._transport(setting)
        return FlowsPlan(flows, transport, self.seed, setting.scale.time)

    def _transport(self, setting: Setting) -> Transport:
        """Return the transport in real bytes and seconds: an emulated byte is S real ones."""
        packet, header = Transport.packet_bytes, Transport.header_bytes
        if (payload := setting.scale.payload) != 1:
            packet = round((setting.frames.mtu_bytes + ETHERNET_BYTES) * payload)
            header = round((IN_PACKET_BYTES + ETHERNET_BYTES) * payload)
        return Transport(
            self.packet or packet,
            self.header or header,
            self.window,
            self.full_packets,
            self.acknowledgement or 0,
            self.paths == "spray",
            self.nic_delay,
            self.link_delay,
        )
