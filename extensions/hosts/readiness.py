"""Check that a host can build a lab now, and choose addresses at which the lab's controller listens."""

from __future__ import annotations

import random
import secrets
import socket
from contextlib import suppress

from ringlight.containers.image import image_present as image_present
from ringlight.testbed.addresses import Addresses
from ringlight.testbed.lab import LabError
from ringlight.testbed.readiness import check_ready
from ringlight.testbed.services import ServiceError

#: The kernel's name for such interfaces.
WIREGUARD = "wireguard"


def why_not_ready(runtime: str) -> str | None:
    """Return in one line what prevents a lab on this host now; None if it is ready. Runs on the host."""
    try:
        check_ready(runtime, free_addresses())
    except (LabError, ServiceError) as error:
        return str(error)
    return None


def remove_stale() -> None:
    """Remove all that is left of labs on this host that no process holds any more. Runs on the host."""
    from ringlight.testbed.emulation.clean import clean_stale

    clean_stale()


def why_not_encrypted(ip: str) -> str | None:
    """Return in one line why the kernel's WireGuard does not encrypt data from this address to other hosts;
    None if it does.

    Runs on the host.
    """
    from pyroute2.iproute import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    with IPRoute() as here:
        index = next(
            address["index"]
            for address in here.get_addr()
            if address.get_attr("IFA_ADDRESS") == ip
        )
        (link,) = here.get_links(index)
        about = link.get_attr("IFLA_LINKINFO")
        if about is not None and about.get_attr("IFLA_INFO_KIND") == WIREGUARD:
            return None
        # A name of our own, as of a part of a lab; clean would remove it.
        name, remedy = (
            f"rl{secrets.token_hex(2)}-wg",
            "give its worker one that is: dask worker … --host IP",
        )
        try:
            here.link("add", ifname=name, kind=WIREGUARD)
            here.link("del", ifname=name)
        except NetlinkError:
            remedy = "its kernel has no WireGuard"
    return f"--wireguard: {ip}, of interface {link.get_attr('IFLA_IFNAME')}, is no WireGuard address; {remedy}"


def free_addresses() -> Addresses:
    """Return two free addresses of this machine's loopback, for a controller that only its lab calls.

    Several such controllers can run on one machine.
    """
    return Addresses(
        rest=f"127.0.0.1:{_free_port()}", openflow=f"127.0.0.1:{_free_port()}"
    )


def _free_port() -> int:
    """Return a TCP port that nothing listens on, out of those that the kernel gives to no client."""
    while True:
        port = random.randrange(20_000, 32_768)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
