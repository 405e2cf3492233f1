"""Drivers of optical switches that a fabric file can name: pure data, and what fits together.

The drivers are in ``controller/optical``, the protocols that the emulated switch speaks in
``testbed/emulation/optical``; a unit test holds this table against both. A driver of another package
(``controller/optical/registry.py``) is not known here: its switch cannot be emulated and needs an address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Profiles of classes of switches rather than products; the switch of any driver can have one.
CLASSES = ("mems", "piezo", "ideal")
_CALIENT = ("calient-s320",)
_POLATIS = ("polatis-7000", "polatis-6000")
_SONIC = ("sonic-ocs",)


@dataclass(frozen=True)
class DriverKind:
    """``products``: profiles that its switch may have besides those of `CLASSES`. ``profile``: the one it
    has unless another is said. ``port``: TCP port of such a switch, None if it comes to the controller.

    ``protocol``: what the emulated switch serves for it, None if it cannot. ``login``: whether there is a
    user to say. ``options``: what can be said in ``options``, as the driver describes it.
    """

    products: tuple[str, ...]
    profile: str
    port: int | None
    protocol: str | None
    login: bool = True
    options: frozenset[str] = frozenset()


_WEB = {"tls", "ca_file"}
_CERTIFIED = {*_WEB, "cert_file", "key_file", "server_name"}

DRIVERS: Mapping[str, DriverKind] = {
    # Without a product in its name, for the fabric files that had it before there were others.
    "scpi": DriverKind(_POLATIS, "mems", 5025, "scpi", login=False),
    "polatis-scpi": DriverKind(_POLATIS, "polatis-7000", 5025, "scpi", login=False),
    "polatis-tl1": DriverKind(_POLATIS, "polatis-7000", 3082, "polatis-tl1"),
    "polatis-netconf": DriverKind(
        _POLATIS,
        "polatis-7000",
        830,
        None,
        options=frozenset({"key_file", "host_key", "known_hosts", "verify"}),
    ),
    "polatis-restconf": DriverKind(
        _POLATIS, "polatis-7000", 8008, "polatis-restconf", options=frozenset({*_WEB, "settle_s"})
    ),
    "calient-tl1": DriverKind(
        _CALIENT, "calient-s320", 3083, "calient-tl1", options=frozenset({"group", "bulk"})
    ),
    "calient-rest": DriverKind(
        _CALIENT, "calient-s320", 443, "calient-rest", options=frozenset({*_WEB, "group"})
    ),
    "ocp-gnmi": DriverKind(
        ("ocp",),
        "ocp",
        9339,
        "ocp-gnmi",
        options=frozenset({*_CERTIFIED, "inputs", "outputs"}),
    ),
    "sonic-ocs": DriverKind(_SONIC, "sonic-ocs", 443, "sonic-ocs", options=frozenset(_WEB)),
    "sonic-ocs-gnmi": DriverKind(
        _SONIC, "sonic-ocs", 8080, "sonic-ocs-gnmi", options=frozenset({*_CERTIFIED, "schema"})
    ),
    "openflow": DriverKind((*_CALIENT, *_POLATIS, "ocp", *_SONIC), "mems", None, None, login=False),
}

#: All that the emulated switch speaks.
PROTOCOLS = tuple(dict.fromkeys(kind.protocol for kind in DRIVERS.values() if kind.protocol is not None))

#: Options that also the driver of an emulated switch can be told.
EMULATED_OPTIONS = frozenset({"group", "bulk", "settle_s", "schema"})

#: Keys of an inventory entry that no option may take the place of.
RESERVED = frozenset(
    {
        *("driver", "address", "profile", "dpid", "bridge", "pid", "rest", "restarts", "wavelengths"),
        *("username", "password", "password_env", "password_file"),
    }
)


def protocols_of(profile: str) -> tuple[str, ...]:
    """Return the emulated protocols of a switch of that profile. A switch of a class has all of them."""
    kinds = DRIVERS.values()
    spoken = [kind.protocol for kind in kinds if profile in CLASSES or profile in kind.products]
    return tuple(dict.fromkeys(name for name in spoken if name is not None))


def driver_of(text: str) -> str:
    """Return the name of a driver as it is written everywhere; ``text`` may have underscores."""
    return text.replace("_", "-")
