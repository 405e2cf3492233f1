"""A part of a lab on one of its hosts, as a task of Dask: the host's place for a lab is taken while it lives.

The part's testbed does not end with the worker that started it. Dask gives the task to the next worker of the
same host, which finds the part by the lab's token and goes on with it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringlight.testbed.forkserver import Process, start_process
from ringlight.testbed.hosts.cluster import this_worker
from ringlight.testbed.lab import STATE_ROOT, Lab, LabError, new_lab
from ringlight.testbed.parts import FILE, Parts
from ringlight.testbed.processes import belongs_to, remove

#: Longest orderly end of a part, seconds.
END_S = 30.0
#: Of its log so many bytes come back, its last.
LOG_BYTES = 1 << 20
_LOG, _PID = "testbed.log", "testbed.pid"
_EVERY_S = 0.1


@dataclass(frozen=True)
class PartOrder:
    """What a host is to build. ``section``: the fabric as a scenario writes it; ``options``: of the testbed.
    ``start_by_s``: time (of the host that orders) after which it is not to be built any more."""

    parts: Parts
    section: Mapping[str, Any]
    runtime: str
    options: tuple[str, ...]
    start_by_s: float


@dataclass(frozen=True)
class Kept:
    """What is left of a part that was told to end: the last of its testbed's log."""

    log: bytes


def keep_part(order: PartOrder) -> Kept:
    """Build a part, or find it, and stay until it has ended; nothing is left then. Raises LabError where it
    could not be built, or ended by itself."""
    _, unwanted = this_worker()
    found = found_part(order.parts.token)
    if found is None and time.time() > order.start_by_s:
        raise LabError("its part has ended")
    lab = found or new_lab()
    # Held until nothing is left: a lab that comes up meanwhile would take it for a dead one's.
    with lab.hold():
        if found is None:
            _start(lab, order)
        try:
            return _kept(lab, unwanted)
        finally:
            end_part(lab)


def _kept(lab: Lab, unwanted: Callable[[], bool]) -> Kept:
    while not unwanted() and _runs(lab):
        time.sleep(_EVERY_S)
    if unwanted():
        end_part(lab, keep_log=True)
    said = _log_of(lab)
    lines = said.decode(errors="replace").strip().splitlines()
    if lines and lines[-1].startswith("testbed: "):
        raise LabError(lines[-1].removeprefix("testbed: "))
    return Kept(said)


def _start(lab: Lab, order: PartOrder) -> None:
    state = lab.state_dir
    order.parts.write(state / FILE)
    (state / "fabric.json").write_text(json.dumps(dict(order.section)), encoding="utf-8")
    command = [
        *(sys.executable, "-m", "ringlight.testbed.emulation", "--lab", lab.id, "--state", str(state)),
        *("--fabric", str(state / "fabric.json"), "--runtime", order.runtime),
        *("--part", str(state / FILE), *order.options),
    ]
    with (state / _LOG).open("ab") as output:
        process: Process = start_process(command, lab.environment(), output)
    (state / _PID).write_text(str(process.pid), encoding="ascii")
    _PROCESSES[lab.id] = process


#: Those of this worker's own, which it has to wait for once they have ended.
_PROCESSES: dict[str, Process] = {}


def _runs(lab: Lab) -> bool:
    own = _PROCESSES.get(lab.id)
    if own is not None:
        return own.poll() is None
    pid = _pid(lab)
    return pid is not None and belongs_to(lab, pid)


def _pid(lab: Lab) -> int | None:
    try:
        return int((lab.state_dir / _PID).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _log_of(lab: Lab) -> bytes:
    try:
        with (lab.state_dir / _LOG).open("rb") as log:
            log.seek(max(0, (lab.state_dir / _LOG).stat().st_size - LOG_BYTES))
            return log.read()
    except OSError:
        return b""


def end_part(lab: Lab, keep_log: bool = False) -> None:
    """End a part's testbed, and remove whatever is left; with ``keep_log`` all but its directory."""
    pid, deadline = _pid(lab), time.monotonic() + END_S
    for number in (signal.SIGTERM, signal.SIGKILL):
        if pid is None or not _runs(lab):
            break
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        while _runs(lab) and time.monotonic() < deadline:
            time.sleep(_EVERY_S)
        deadline += 5.0
    if not keep_log:
        _PROCESSES.pop(lab.id, None)
        remove(lab)


def found_part(token: str) -> Lab | None:
    """The part on this host of the lab with this token, if its testbed lives."""
    for lab, parts in _parts():
        if parts.token == token and _runs(lab):
            return lab
    return None


def _parts() -> Iterator[tuple[Lab, Parts]]:
    """Labs of this host that are parts of one over several hosts."""
    for path in STATE_ROOT.glob(f"*/{FILE}"):
        # Its lab may be going.
        with suppress(OSError, ValueError, LabError):
            yield Lab(path.parent.name), Parts.read(path)


def is_gone(token: str) -> bool:
    """Whether nothing of a part is left on this host."""
    return not any(parts.token == token for _, parts in _parts())


def numbers_taken(udp_port: int, numbers: Sequence[int]) -> str | None:
    """Which of these VXLAN numbers a lab of this host, or anybody else, has at a UDP port, and who."""
    wanted = set(numbers)
    for lab, parts in _parts():
        if lab.is_alive() and parts.udp_port == udp_port:
            taken = wanted & {tunnel.number for tunnel in parts.tunnels.values()}
            if taken:
                return f"VXLAN number {min(taken)} at UDP port {udp_port} is a fibre of lab {lab.id}"
    for name, number, port in _tunnels_here():
        if number in wanted and port == udp_port:
            return f"VXLAN number {number} at UDP port {udp_port} is that of interface {name}"
    return None


def _tunnels_here() -> Iterator[tuple[str, int, int]]:
    """Name, number and UDP port of VXLAN interfaces in this network namespace."""
    from pyroute2 import IPRoute

    with IPRoute() as here:
        for link in here.get_links():
            info = link.get_attr("IFLA_LINKINFO")
            if info is None or info.get_attr("IFLA_INFO_KIND") != "vxlan":
                continue
            data = info.get_attr("IFLA_INFO_DATA")
            yield (
                link.get_attr("IFLA_IFNAME"),
                data.get_attr("IFLA_VXLAN_ID"),
                data.get_attr("IFLA_VXLAN_PORT"),
            )


def free_door(ip: str) -> int:
    """A TCP port of this host's address that nothing listens on now."""
    with socket.create_server((ip, 0), family=socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
        port: int = probe.getsockname()[1]
    return port


def tls_files() -> dict[str, str] | None:
    """Files of the certificates that this worker shows, from Dask's configuration; None without any.

    Raises LabError where they are no files.
    """
    from distributed.security import Security

    config = Security().get_tls_config_for_role("worker")
    found = {"ca": config["ca_file"], "cert": config["cert"], "key": config["key"] or config["cert"]}
    if not any(found.values()):
        return None
    for kind, path in found.items():
        if not path or not Path(path).is_file():
            raise LabError(f"Dask's configuration: {kind}: {path!r} is no file; a lab over hosts needs one")
    return found
