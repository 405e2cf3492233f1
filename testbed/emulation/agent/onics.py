"""O-NICs as the server agent shows and sets them: counters, and routes of those that have no agent."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.onic.counting import read_light
from ringlight.testbed.emulation.onic.tables import RouteTable, Transmitter
from ringlight.testbed.emulation.onic.wiring import array_wavelengths


class Onics:
    """The O-NICs of a lab. ``bpf_dir``: where their maps are pinned. Safe from any thread."""

    def __init__(self, fabric: Fabric, bpf_dir: Path) -> None:
        self._fabric = fabric
        self._bpf_dir = bpf_dir
        self._lock = threading.Lock()

    def counters(self) -> dict[str, Any]:
        """Return the counters of the O-NICs and WSSs since they were created, and the sums of those that must
        stay 0."""
        return read_light(self._fabric, self._bpf_dir)

    def set_transmitters(
        self, gpu: str, routes: Mapping[str, Transmitter]
    ) -> dict[str, Any]:
        """Set the complete transmit table of a GPU's O-NIC to ``routes``, by peer's address. Return the table
        as read back from the kernel.

        Raises AgentError. Nothing has been changed then, unless the kernel refused.
        """
        onic = self._fabric.onics.get(gpu)
        if onic is None:
            raise AgentError(404, f"GPU {gpu} has no O-NIC")
        if onic.standing:
            raise AgentError(
                409, f"the light of O-NIC {gpu} stands; PUT /v1/lightpaths sets it"
            )
        wavelengths = array_wavelengths(self._fabric, gpu)
        if wavelengths is None:
            raise AgentError(
                409,
                f"the lasers of O-NIC {gpu} are tunable; its own agent sets its routes",
            )
        for ip, chosen in routes.items():
            peer = self._fabric.gpu_by_ip(ip)
            if peer is None or peer.name == gpu:
                raise AgentError(
                    422, f"O-NIC {gpu}: {ip} is the address of no other GPU"
                )
            if chosen.wavelength is None or chosen.wavelength >= wavelengths:
                text = f"O-NIC {gpu}: {ip}: there is no wavelength {chosen.wavelength} (0..{wavelengths - 1})"
                raise AgentError(422, text)
        try:
            table = RouteTable(self._bpf_dir / f"onic-{gpu}")
            try:
                with self._lock:
                    table.replace(routes)
                    return {ip: route._asdict() for ip, route in table.read().items()}
            finally:
                table.close()
        except OSError as error:
            raise AgentError(
                500, f"O-NIC {gpu}: transmit table: {error.strerror or error}"
            ) from None
