"""Reasons for which a lab cannot be built now: services that do not run, open doors, ports that are taken."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ringlight.containers.image import image_present, image_tag
from ringlight.testbed import services
from ringlight.testbed.addresses import Addresses
from ringlight.testbed.lab import ENVIRONMENT, STATE_ROOT, LabError
from ringlight.testbed.lab_programs import ProgramOptions
from ringlight.testbed.packages import check_packages
from ringlight.testbed.standing_labs import STANDING_FILE

#: State of a socket that waits for callers, in /proc/net/tcp.
_LISTENS = "0A"


def check_ready(
    runtime: str, addresses: Addresses, programs: Sequence[ProgramOptions] = ()
) -> None:
    """Raise LabError, one line with the remedy, for what stands in a lab's way now. Makes nothing.

    ``programs``: what is to run next to the controller.
    """
    check_packages()
    try:
        services.check_privileges()
        _check_services(runtime)
    except services.ServiceError as error:
        raise LabError(str(error)) from None
    _check_doors(addresses)
    needed = {"--rest": addresses.rest, "--openflow": addresses.openflow}
    for program in programs:
        needed |= program.listens()
    _check_free(needed)


def _check_services(runtime: str) -> None:
    """Raise LabError, or ServiceError, for a service of the machine that does not run."""
    if not services.open_vswitch_running():
        raise LabError("Open vSwitch is not running; start it with: ringlight setup")
    if runtime == "docker":
        if not services.docker_running():
            remedy = "start it with: ringlight setup  (or choose --runtime namespace)"
            raise LabError(f"Docker is not running; {remedy}")
        if not image_present():
            raise LabError(
                f"the worker image {image_tag()} is missing; make it with: ringlight setup"
            )


def _check_doors(addresses: Addresses) -> None:
    """Raise LabError for what would be open to more than was stated."""
    # Here, as a simulation loads this module with the backends.
    from ringlight.controller.errors import StartError
    from ringlight.controller.web.access import check_doors, check_tls

    try:
        check_tls(*(addresses.tls or (None, None)))
        check_doors(
            addresses.rest,
            addresses.openflow,
            token=addresses.token is not None,
            tls=addresses.tls is not None,
            rest_insecure="rest" in addresses.insecure,
            openflow_insecure="openflow" in addresses.insecure,
        )
    except StartError as error:
        raise LabError(str(error)) from None


def _check_free(addresses: Mapping[str, str]) -> None:
    """Raise LabError naming all TCP ports that are needed and taken, and the labs that have them.

    ``addresses``: by the options that choose them.
    """
    taken: dict[str, str] = {}
    for option, address in addresses.items():
        if (why := _why_taken(address, option)) is not None:
            taken[option] = why
    if not taken:
        return
    ports = {option: int(addresses[option].rpartition(":")[2]) for option in taken}
    text = " and ".join(f"port {port} ({option})" for option, port in ports.items())
    reasons = "; ".join(dict.fromkeys(taken.values()))
    labs = labs_at(ports.values())
    owner = (
        "; ".join(_ending(lab) for lab in labs)
        if labs
        else "another program has it; stop that one"
    )
    options = " and ".join(ports)
    raise LabError(
        f"{text} cannot be used: {reasons}; {owner}, or choose other ports with {options}"
    )


def _why_taken(address: str, option: str) -> str | None:
    """Return why nothing can listen at an address now; None if it is free.

    Raises LabError if the text is not an address.
    """
    host, _, number = address.rpartition(":")
    if not host or not number.isdigit() or not 0 < int(number) < 65536:
        raise LabError(
            f"{option}: {address!r} is not host:port, such as 127.0.0.1:8080"
        )
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(number)))
        except OSError as error:
            return error.strerror or str(error)
    return None


def _ending(lab: str) -> str:
    """Return a text that names the lab that has a port, and how that lab ends."""
    if (STATE_ROOT / lab / STANDING_FILE).exists():
        return f"lab {lab} has it, which ends with: ringlight down {lab}"
    return f"lab {lab} has it, whose run or shell goes on"


def labs_at(ports: Iterable[int]) -> list[str]:
    """Return the ids of labs of which a process listens at one of these TCP ports."""
    hex_ports = {f"{port:04X}" for port in ports}
    sockets = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with suppress(OSError):
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENS and words[1].rpartition(":")[2] in hex_ports:
                    sockets.add(f"socket:[{words[9]}]")
    labs: dict[str, None] = {}
    for process in Path("/proc").glob("[0-9]*"):
        # It may end, or be another user's.
        with suppress(OSError):
            if not any(
                os.readlink(open_file) in sockets for open_file in process.glob("fd/*")
            ):
                continue
            for entry in (process / "environ").read_bytes().split(b"\0"):
                name, _, lab = entry.decode(errors="replace").partition("=")
                if name == ENVIRONMENT:
                    labs[lab] = None
    return list(labs)
