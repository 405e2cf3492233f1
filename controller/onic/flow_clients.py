"""Workers at an O-NIC's flow.sock, which open and close flows and are told when there is light."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ringlight.controller.onic.agent_settings import Address
from ringlight.controller.onic.sockets import accepted
from ringlight.controller.onic.wavelength_map import PeerEntry

MAX_FLOWS_PER_CLIENT = 4096
MAX_PACKET_BYTES = 4096
_encoded = json.JSONEncoder(separators=(",", ":")).encode
_raw_decoded = json.JSONDecoder().raw_decode


def flow_name(request: Mapping[str, Any], key: str) -> int | str:
    """Return the worker's name of the flow that it opens or closes. Raises ValueError."""
    name = request[key]
    # A bool would be equal to the number 0 or 1.
    if isinstance(name, bool) or not isinstance(name, int | str):
        raise ValueError(f"{key} must be a number or a text")
    return name


def _parsed(packet: bytes) -> Any:
    """Return a packet's JSON, without the layers of ``json.loads``. Raises ValueError or RecursionError."""
    text = packet.decode().strip()
    document, end = _raw_decoded(text)
    if end < len(text):
        raise ValueError(f"more than one JSON document: {text[end:][:20]!r} follows")
    return document


@dataclass
class _Worker:
    connection: socket.socket
    number: int
    flows: dict[tuple[int, Any], None] = field(default_factory=dict)


class FlowClients:
    """Workers that are connected, and their flows, each named by the worker's number and its own name for it.

    ``readers``: function to call when a descriptor can be read. ``peers``: returns the wavelength map's
    peers, None without a map. ``open_flow`` and ``close_flow`` hand a flow to the protocol core.
    """

    def __init__(
        self,
        readers: dict[int, Callable[[], None]],
        counts: dict[str, int],
        peers: Callable[[], Mapping[str, PeerEntry] | None],
        open_flow: Callable[[Any, Address], None],
        close_flow: Callable[[Any], None],
    ) -> None:
        self._readers, self._counts, self._peers = readers, counts, peers
        self._open, self._close = open_flow, close_flow
        self._workers: dict[int, _Worker] = {}
        self._next_worker = 0
        self._doomed: list[_Worker] = []

    def __len__(self) -> int:
        return len(self._workers)

    def accept(self, listener: socket.socket) -> None:
        """Accept a worker."""
        connection = accepted(listener, len(self._workers), self._counts)
        if connection is None:
            return
        self._next_worker += 1
        worker = self._workers[self._next_worker] = _Worker(
            connection, self._next_worker
        )
        self._readers[connection.fileno()] = partial(self._read_worker, worker)

    def tell(
        self, flow: Any, what: str, over: bool, more: Mapping[str, object] | None = None
    ) -> None:
        """Tell a worker what became of its flow. ``over``: the flow has ended. ``more``: what else to say."""
        number, name = flow
        worker = self._workers.get(number)
        if worker is None:
            return
        if over:
            worker.flows.pop(flow, None)
        if more is None and isinstance(name, int):
            # Nearly all are so, and the encoder is much code for it.
            self._write(worker, f'{{"{what}":{name}}}')
        else:
            self._write(worker, _encoded({what: name, **(more or {})}))

    def drop_doomed(self) -> None:
        """End the connections of workers that could not be told something, and close their flows."""
        while self._doomed:
            self._drop_worker(self._doomed.pop())

    def drop_all(self) -> None:
        """End all connections, and close all flows."""
        for worker in list(self._workers.values()):
            self._drop_worker(worker)

    def _read_worker(self, worker: _Worker) -> None:
        try:
            data = worker.connection.recv(MAX_PACKET_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop_worker(worker)
            return
        try:
            if len(data) > MAX_PACKET_BYTES:
                raise ValueError(f"longer than {MAX_PACKET_BYTES} bytes")
            request = _parsed(data)
            if not isinstance(request, dict):
                raise ValueError("not a JSON object")
            if "open" in request:
                self._open_flow(worker, flow_name(request, "open"), request.get("peer"))
            elif "close" in request:
                self._close_flow(worker, flow_name(request, "close"))
            else:
                raise ValueError('neither "open" nor "close"')
        except (ValueError, RecursionError) as error:
            self._write(worker, _encoded({"error": str(error)}))

    def _open_flow(self, worker: _Worker, name: int | str, peer: object) -> None:
        flow = (worker.number, name)
        if flow in worker.flows:
            raise ValueError(f"flow {name!r} is already open")
        if len(worker.flows) >= MAX_FLOWS_PER_CLIENT:
            raise ValueError(f"more than {MAX_FLOWS_PER_CLIENT} flows are open")
        peers = self._peers()
        entry = None if peers is None else peers.get(str(peer))
        if entry is None:
            reason = (
                "this O-NIC has no wavelength map"
                if peers is None
                else "is not in the wavelength map"
            )
            self._write(
                worker, _encoded({"failed": name, "reason": f"{peer}: {reason}"})
            )
            return
        worker.flows[flow] = None
        self._open(flow, entry.agent)

    def _close_flow(self, worker: _Worker, name: int | str) -> None:
        flow = (worker.number, name)
        if flow not in worker.flows:
            raise ValueError(f"flow {name!r} is not open")
        self._close(flow)

    def _write(self, worker: _Worker, text: str) -> None:
        try:
            worker.connection.send(text.encode())
        except OSError:
            # Gone, or it does not read what it is told, and then does not know about its light. Dropped when
            # the effects at hand are carried out: its flows' closing must come after them.
            self._doomed.append(worker)

    def _drop_worker(self, worker: _Worker) -> None:
        """End a worker's connection and closes all its flows."""
        if self._workers.pop(worker.number, None) is None:
            return
        del self._readers[worker.connection.fileno()]
        worker.connection.close()
        for flow in list(worker.flows):
            self._close(flow)
