"""Clients of the management sockets of a fabric's O-NICs, and the last known state of each.

An agent answers on a Unix socket, one JSON object per line. Only maps, status and traces go over it: who may
send when is settled between the agents, and nothing here takes part in that.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.errors import (
    ConflictError,
    ControllerError,
    NotFoundError,
    UnavailableError,
)
from ringlight.controller.onic.place import OnicPlace
from ringlight.controller.onic.wire import VERSION

#: A longer answer is garbage; a full trace ring is well below.
MAX_ANSWER_BYTES = 16 << 20
#: Agents asked at the same time.
PARALLEL = 16


@dataclass(frozen=True)
class OnicEntry:
    """Addresses of an O-NIC's agent.

    ``manage``: path of its socket. ``control``: its host:port on the control network. ``flow``: path of the
    flow socket as the GPU's worker sees it.
    """

    gpu: str
    manage: str
    control: str
    flow: str


def entries_of(places: Mapping[str, OnicPlace]) -> dict[str, OnicEntry]:
    """Return the O-NICs' agents by GPU, without the O-NICs that have no agent."""
    return {
        gpu: OnicEntry(gpu, place.manage, place.control, place.flow)
        for gpu, place in places.items()
        if place.manage is not None
        and place.control is not None
        and place.flow is not None
    }


def ask(
    entry: OnicEntry, op: str, *, timeout_s: float = 2.0, **fields: Any
) -> dict[str, Any]:
    """Send one request to an agent over a separate connection. Return the answer.

    Raises UnavailableError if no valid answer arrives in time, ConflictError with the agent's reason if it
    refuses.
    """
    deadline = time.monotonic() + timeout_s
    answer = bytearray()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(entry.manage)
            connection.sendall(json.dumps({"op": op, **fields}).encode() + b"\n")
            while not answer.endswith(b"\n"):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                connection.settimeout(left_s)
                part = connection.recv(1 << 18)
                if not part:
                    raise ConnectionResetError("it hung up")
                answer += part
                if len(answer) > MAX_ANSWER_BYTES:
                    raise ValueError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        reply = json.loads(answer)
        if not isinstance(reply, dict):
            raise ValueError("its answer is not an object")
    except TimeoutError:
        raise UnavailableError(
            f"O-NIC agent of {entry.gpu}: no answer within {timeout_s:g} s"
        ) from None
    except OSError as error:
        raise UnavailableError(
            f"O-NIC agent of {entry.gpu}: {error.strerror or error}"
        ) from None
    except ValueError as error:
        raise UnavailableError(f"O-NIC agent of {entry.gpu}: {error}") from None
    if reply.get("ok") is not True:
        raise ConflictError(
            f"O-NIC agent of {entry.gpu}: {reply.get('error', 'refused')}"
        )
    return reply


@dataclass(frozen=True)
class OnicView:
    """Known state of one O-NIC.

    ``error``: reason for which its agent does not answer, None if it does. ``status``: last answer of the
    agent, whose epoch distinguishes restarts.
    """

    error: str | None = "not reached yet"
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reachable(self) -> bool:
        return self.error is None


class OnicSite:
    """The agents by GPU. Safe from any thread."""

    def __init__(self, entries: Mapping[str, OnicEntry], bus: EventBus) -> None:
        self.entries = entries
        self._bus = bus
        self._lock = threading.Lock()
        self._views = {gpu: OnicView() for gpu in entries}
        self._pool: ThreadPoolExecutor | None = None
        if entries:
            self._pool = ThreadPoolExecutor(
                min(PARALLEL, len(entries)), thread_name_prefix="onics"
            )

    def entry(self, gpu: str) -> OnicEntry:
        """Return the inventory entry of a GPU's O-NIC. Raises NotFoundError."""
        if gpu not in self.entries:
            raise NotFoundError(f"GPU {gpu} has no O-NIC")
        return self.entries[gpu]

    def views(self) -> dict[str, OnicView]:
        """Return the last known state of every O-NIC, by GPU."""
        with self._lock:
            return dict(self._views)

    def status(self, gpu: str, *, timeout_s: float = 2.0) -> dict[str, Any]:
        """Return an agent's present status.

        Raises NotFoundError, UnavailableError if the agent does not answer in time, ConflictError if it
        refuses or has another protocol version.
        """
        entry = self.entry(gpu)
        try:
            status = ask(entry, "status", timeout_s=timeout_s)
        except ControllerError as error:
            self._note(gpu, OnicView(str(error)))
            raise
        version = status.get("version")
        if version != VERSION:
            error_ = (
                f"O-NIC agent of {gpu} speaks protocol version {version}, not {VERSION}"
            )
            self._note(gpu, OnicView(error_, status))
            raise ConflictError(error_)
        self._note(gpu, OnicView(None, status))
        return status

    def ask(
        self, gpu: str, op: str, *, timeout_s: float = 2.0, **fields: Any
    ) -> dict[str, Any]:
        """Send any other request to an agent. Return the answer.

        Raises NotFoundError, UnavailableError if the agent does not answer in time, ConflictError if it
        refuses.
        """
        return ask(self.entry(gpu), op, timeout_s=timeout_s, **fields)

    def on_all(
        self, gpus: Collection[str], work: Callable[[str], None]
    ) -> dict[str, ControllerError]:
        """Run ``work`` for every GPU in parallel. Return the errors by GPU, in the given order."""

        def attempt(gpu: str) -> ControllerError | None:
            try:
                work(gpu)
            except ControllerError as error:
                return error
            return None

        if self._pool is None:
            return {}
        try:
            outcomes = list(self._pool.map(attempt, gpus))
        except (RuntimeError, CancelledError):
            # Closed meanwhile.
            return {gpu: UnavailableError("the controller is stopping") for gpu in gpus}
        return {
            gpu: error
            for gpu, error in zip(gpus, outcomes, strict=True)
            if error is not None
        }

    def look(self, gpus: Collection[str] | None = None) -> dict[str, ControllerError]:
        """Read the status of every agent (or of these). Return the errors by GPU."""

        def read_status(gpu: str) -> None:
            self.status(gpu)

        return self.on_all(tuple(self.entries) if gpus is None else gpus, read_status)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _note(self, gpu: str, view: OnicView) -> None:
        with self._lock:
            before = self._views[gpu]
            self._views[gpu] = view
        if view.reachable and not before.reachable:
            self._bus.publish(
                "onic", gpu=gpu, state="up", epoch=view.status.get("epoch")
            )
        elif not view.reachable and (
            before.reachable or before.error == OnicView.error
        ):
            self._bus.publish("onic", gpu=gpu, state="down", text=view.error)
        elif view.reachable and view.status.get("epoch") != before.status.get("epoch"):
            self._bus.publish(
                "onic", gpu=gpu, state="restarted", epoch=view.status.get("epoch")
            )
