"""Standing light of O-NICs as the server agent sets it, and what has left of what workers posted."""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric, channels
from ringlight.testbed.emulation.agent.files import read_from
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.onic.tables import (
    MOST_LIGHTPATHS,
    LightTable,
    PeerCount,
    PeerLight,
    TrafficTable,
    Transmitter,
)

log = logging.getLogger(__name__)

#: In a worker's directory: bytes that it has given its NIC towards each rank, whole numbers of the machine.
POSTED = "posted"
_NUMBER = struct.Struct("=Q")
#: How often it is looked whether a worker has ended a turn, seconds.
LOOK_S = 0.003


@dataclass(frozen=True)
class _Posting:
    """A worker that posts: its file, the addresses of its job's ranks, what its O-NIC had counted before."""

    file: Path
    addresses: tuple[str, ...]
    before: Mapping[str, PeerCount]


class Lightpaths:
    """The O-NICs of a lab whose light stands. ``bpf_dir``: where their maps are pinned. Safe from any thread.

    A map stays open once it was used: a control loop asks every second.
    """

    def __init__(self, fabric: Fabric, bpf_dir: Path) -> None:
        self._fabric = fabric
        self._bpf_dir = bpf_dir
        self._gpu_of_ip = {gpu.ip: gpu.name for gpu in fabric.gpus.values()}
        self._lock = threading.Lock()
        self._tables: dict[str, tuple[LightTable, TrafficTable]] = {}
        self._posting: dict[str, _Posting] = {}

    def close(self) -> None:
        """Let go of the maps."""
        with self._lock:
            for lights, traffic in self._tables.values():
                lights.close()
                traffic.close()
            self._tables.clear()

    def replace(
        self, lights_by_gpu: Mapping[str, Mapping[str, PeerLight]]
    ) -> dict[str, dict[str, Any]]:
        """Set the complete light of each GPU in ``lights_by_gpu``, by peer's address. Return the light as
        read back from the kernel.

        Raises AgentError. Nothing has been changed then, unless the kernel refused.
        """
        for gpu, lights in lights_by_gpu.items():
            self._check(gpu, lights)
        result = {}
        for gpu, lights in lights_by_gpu.items():
            with self._opened(gpu) as (table, _):
                table.replace(lights)
                result[gpu] = {
                    ip: {
                        "lit": light.lit,
                        "paths": [path._asdict() for path in light.paths],
                    }
                    for ip, light in sorted(table.read().items())
                }
        return result

    def begin(self, gpu: str, directory: Path, addresses: Sequence[str]) -> None:
        """A worker starts at ``gpu`` that posts in ``directory`` what it sends to ranks of these addresses.

        Nothing where no light stands. Raises AgentError.
        """
        onic = self._fabric.onics.get(gpu)
        if onic is None or not onic.standing:
            return
        with self._opened(gpu) as (_, traffic):
            self._posting[gpu] = _Posting(
                directory / POSTED, tuple(addresses), traffic.peers()
            )

    def end(self, gpu: str) -> None:
        """The worker at ``gpu`` is gone, if it was one that posts."""
        with self._lock:
            self._posting.pop(gpu, None)

    def turns(self, known: Mapping[str, int], wait_s: float) -> dict[str, int]:
        """Return how many turns the worker of each GPU has ended, of workers that post
        their progress.

        Waits until a number differs from ``known``, or for ``wait_s`` seconds.
        """
        deadline = time.monotonic() + wait_s
        while True:
            with self._lock:
                posting = list(self._posting.items())
            turns = {gpu: _turned(worker) for gpu, worker in posting}
            if time.monotonic() >= deadline or any(
                known.get(gpu, 0) != n for gpu, n in turns.items()
            ):
                return turns
            time.sleep(LOOK_S)

    def traffic(self) -> dict[str, Any]:
        """Return the bytes that each GPU's worker has posted to its peers since it started, and those that
        have left as light.

        The result is ``{"t", "gpus": {gpu: {ip: {"posted", "fresh", "resent", "held"}}}}``: seconds of
        CLOCK_MONOTONIC, bytes, and rounds in the dark. Only workers that post are included. Raises
        AgentError.
        """
        began = time.monotonic()
        with self._lock:
            posting = list(self._posting.items())
        gpus = {}
        for gpu, worker in posting:
            with self._opened(gpu) as (_, traffic):
                counts = traffic.peers()
            # After what has left, which was posted before: so there is never more of that.
            posted = dict(zip(worker.addresses, _posted(worker), strict=True))
            gpus[gpu] = {
                ip: {"posted": posted[ip], **_since(count, worker.before.get(ip))}
                for ip, count in sorted(counts.items())
                if ip in posted
            }
        return {"t": began, "gpus": gpus}

    @contextmanager
    def _opened(self, gpu: str) -> Iterator[tuple[LightTable, TrafficTable]]:
        """The maps of one O-NIC, which nobody else uses meanwhile. Raises AgentError."""
        pins = self._bpf_dir / f"onic-{gpu}"
        try:
            with self._lock:
                if gpu not in self._tables:
                    self._tables[gpu] = _open(pins)
                yield self._tables[gpu]
        except OSError as error:
            raise AgentError(
                500, f"O-NIC {gpu}: lightpaths: {error.strerror or error}"
            ) from None

    def _check(self, gpu: str, lights: Mapping[str, PeerLight]) -> None:
        onic = self._fabric.onics.get(gpu)
        if onic is None:
            raise AgentError(404, f"GPU {gpu} has no O-NIC")
        if not onic.standing:
            text = f"the light of O-NIC {gpu} does not stand; PUT /v1/onics/{gpu}/transmit sets it"
            raise AgentError(409, text)
        wavelengths = channels(self._fabric, Port(gpu, 0)) or 0
        used: set[Transmitter] = set()
        for ip, light in lights.items():
            if self._gpu_of_ip.get(ip, gpu) == gpu:
                raise AgentError(
                    422, f"O-NIC {gpu}: {ip} is the address of no other GPU"
                )
            if len(light.paths) > MOST_LIGHTPATHS:
                count = f"{len(light.paths)} lightpaths, at most {MOST_LIGHTPATHS}"
                raise AgentError(422, f"O-NIC {gpu}: {ip} has {count}")
            for path in light.paths:
                problem = _problem(path, onic.ports, wavelengths)
                if problem is None and path in used:
                    problem = f"{_named(path)} is given twice"
                if problem is not None:
                    raise AgentError(422, f"O-NIC {gpu}: {problem}")
                used.add(path)


def _open(pins: Path) -> tuple[LightTable, TrafficTable]:
    lights = LightTable(pins)
    try:
        return lights, TrafficTable(pins)
    except OSError:
        lights.close()
        raise


def _problem(path: Transmitter, ports: int, wavelengths: int) -> str | None:
    """Return the reason why an O-NIC with so many ports and wavelengths at each has no such transmitter, None
    if it has. ``wavelengths``: 0 if ports are not divided by wavelength."""
    if path.port >= ports:
        return f"there is no port {path.port} (0..{ports - 1})"
    if path.wavelength is None:
        return (
            f"port {path.port}: which wavelength (0..{wavelengths - 1})?"
            if wavelengths
            else None
        )
    if not wavelengths:
        return f"port {path.port} has no wavelengths, and {path.wavelength} is named"
    if path.wavelength >= wavelengths:
        return f"there is no wavelength {path.wavelength} (0..{wavelengths - 1})"
    return None


def _named(path: Transmitter) -> str:
    return f"port {path.port}" + (
        "" if path.wavelength is None else f" wavelength {path.wavelength}"
    )


def _posted(worker: _Posting) -> list[int]:
    """Bytes posted by rank, 0 before the worker begins; a worker that posts garbage harms its own job."""
    count = len(worker.addresses)
    try:
        data = read_from(worker.file, 0, count * _NUMBER.size)
    except FileNotFoundError:
        data = b""
    except OSError as error:
        log.warning("%s cannot be read: %s", worker.file, error.strerror or error)
        data = b""
    return [
        number
        for (number,) in _NUMBER.iter_unpack(data.ljust(count * _NUMBER.size, b"\0"))
    ]


def _turned(worker: _Posting) -> int:
    try:
        data = read_from(
            worker.file, len(worker.addresses) * _NUMBER.size, _NUMBER.size
        )
    except OSError:
        # It has not begun; what is wrong with the file is said where its bytes are read.
        return 0
    return _NUMBER.unpack(data)[0] if len(data) == _NUMBER.size else 0


def _since(count: PeerCount, before: PeerCount | None) -> dict[str, int]:
    then = before or PeerCount(0, 0, 0, 0)
    return {
        "fresh": count.fresh - then.fresh,
        "resent": count.resent - then.resent,
        "held": count.held - then.held,
    }
