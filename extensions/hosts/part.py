"""A part of a lab on one of its hosts, as a task of Dask: so long it has the host's place for a lab."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringlight.extensions.hosts.cluster import OwnWorker
from ringlight.extensions.hosts.forks import TESTBED, fork_from_now_on
from ringlight.extensions.hosts.kept import log_of, looked_after
from ringlight.extensions.hosts.parts.plan import FILE, Parts
from ringlight.testbed.lab import STATE_ROOT, Lab, LabError

#: What Python executes as the testbed of a part, before the file with the plan.
PROGRAM = ("-m", TESTBED, "--part")


@dataclass(frozen=True)
class PartOrder:
    """Order to a host to build a part of a lab.

    ``section``: the fabric as a scenario writes it. ``options``: of the testbed. ``start_by_s``: time
    (seconds, by the clock of the host that orders) after which the part must not be built any more.
    """

    parts: Parts
    section: Mapping[str, Any]
    runtime: str
    options: tuple[str, ...]
    start_by_s: float


def keep_part(order: PartOrder) -> bytes:
    """Build a part, or find it, and stay until it has ended, when nothing is left. Return the end of its log.

    Raises LabError if the part could not be built, or ended by itself.
    """

    def start(lab: Lab) -> list[str] | None:
        if time.time() > order.start_by_s:
            return None
        state = lab.state_dir
        order.parts.write(state / FILE)
        (state / "fabric.json").write_text(
            json.dumps(dict(order.section)), encoding="utf-8"
        )
        return [
            *(
                sys.executable,
                *PROGRAM,
                str(state / FILE),
                "--lab",
                lab.id,
                "--state",
                str(state),
            ),
            *(
                "--fabric",
                str(state / "fabric.json"),
                "--runtime",
                order.runtime,
                *order.options,
            ),
        ]

    fork_from_now_on()
    with looked_after(key_of(order.parts.token), start, OwnWorker()) as lab:
        output = log_of(lab)
    lines = output.decode(errors="replace").strip().splitlines()
    if lines and lines[-1].startswith("testbed: "):
        raise LabError(lines[-1].removeprefix("testbed: "))
    return output


def key_of(token: str) -> str:
    """Return the key of the process of the lab with this token."""
    return f"part {token}"


def _parts() -> Iterator[tuple[Lab, Parts]]:
    """Yield the labs of this host that are parts of a lab over several hosts."""
    for path in STATE_ROOT.glob(f"*/{FILE}"):
        # Its lab may be going.
        with suppress(OSError, ValueError, LabError):
            yield Lab(path.parent.name), Parts.read(path)


def numbers_taken(udp_port: int, numbers: Sequence[int]) -> str | None:
    """Return which of these VXLAN numbers is in use on this host at a UDP port, and by what; None if all are
    free.
    """
    requested = set(numbers)
    for lab, parts in _parts():
        if lab.is_alive() and parts.udp_port == udp_port:
            taken = requested & {tunnel.number for tunnel in parts.tunnels.values()}
            if taken:
                return f"VXLAN number {min(taken)} at UDP port {udp_port} is a fibre of lab {lab.id}"
    for name, number, port in _tunnels_here():
        if number in requested and port == udp_port:
            return f"VXLAN number {number} at UDP port {udp_port} is that of interface {name}"
    return None


def _tunnels_here() -> Iterator[tuple[str, int, int]]:
    """Yield name, number and UDP port of each VXLAN interface in this network namespace."""
    from pyroute2.iproute import IPRoute

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
    """Return a TCP port of this host's address at which nothing listens now."""
    with socket.create_server(
        (ip, 0), family=socket.AF_INET6 if ":" in ip else socket.AF_INET
    ) as probe:
        port: int = probe.getsockname()[1]
    return port


def tls_files() -> dict[str, str] | None:
    """Return the files of the certificates that this worker shows, from Dask's configuration; None if it
    names none.

    Raises LabError if a file is missing.
    """
    from distributed.security import Security

    config = Security().get_tls_config_for_role("worker")
    files = {
        "ca": config["ca_file"],
        "cert": config["cert"],
        "key": config["key"] or config["cert"],
    }
    if not any(files.values()):
        return None
    for kind, path in files.items():
        if not path or not Path(path).is_file():
            raise LabError(
                f"Dask's configuration: {kind}: {path!r} is no file; a lab over hosts needs one"
            )
    return files
