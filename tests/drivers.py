"""What tests do with drivers of optical switches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringlight.fabric.optical_drivers import driver_kinds, protocols_of
from ringlight.testbed.emulation.optical.session import protocol_named
from ringlight.testbed.rigs.changing import converge

__all__ = ["PROTOCOLS", "converge", "entry_of"]


def _is_servable(protocol: str) -> bool:
    try:
        protocol_named(protocol)
    except ValueError:
        # It needs a package of an extra.
        return False
    return True


#: What the emulated switch can serve on this machine, each with a driver of the same name.
PROTOCOLS = tuple(
    protocol for protocol in protocols_of("mems") if _is_servable(protocol)
)


def entry_of(driver: str, address: str, user: str, password: Path) -> dict[str, Any]:
    """Return the inventory entry of an emulated switch, where ``password`` is the file of the user's."""
    kind = driver_kinds()[driver]
    login = {"username": user, "password_file": str(password)} if kind.login else {}
    return {"driver": driver, "address": address, **kind.emulated, **login}
