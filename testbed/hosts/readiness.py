"""Whether a host can build a lab now, and where the lab's controller is to listen."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

from ringlight.containers.image import image_present as image_present
from ringlight.testbed.lab import LabError
from ringlight.testbed.processes import Addresses, check_ready
from ringlight.testbed.services import ServiceError


def why_not_ready(runtime: str) -> str | None:
    """On a host: what stands in a lab's way now, in one line."""
    try:
        check_ready(runtime, free_addresses())
    except (LabError, ServiceError) as error:
        return str(error)
    return None


def free_addresses() -> Addresses:
    """Two addresses of this machine alone, for a controller that only its lab calls: there may be others."""
    return Addresses(rest=f"127.0.0.1:{_free_port()}", openflow=f"127.0.0.1:{_free_port()}")


def _free_port() -> int:
    """A TCP port that nothing listens on, of those that the kernel gives to no client."""
    while True:
        port = random.randrange(20_000, 32_768)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
