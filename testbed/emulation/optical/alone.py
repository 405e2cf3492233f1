"""A switch that runs alone: no testbed, no root, no packets; for other people's controllers.

It is the switch of a testbed but for its light paths, which are modelled (:mod:`.recovery`): light comes in
at every port, and powers, alarms and times are those of its profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ringlight.controller.web.access import is_loopback
from ringlight.fabric.extension import ExtensionError
from ringlight.fabric.optical_drivers import driver_kinds, protocols_of
from ringlight.testbed.emulation.optical.session import protocol_named
from ringlight.testbed.emulation.optical.switch_settings import Settings

#: A file of users, bytes.
_USERS_BYTES = 1 << 16

Address = tuple[str, int]


def read_address(text: str) -> Address:
    """Return host and port of ``host:port``, or of ``[host]:port`` for IPv6. Raises ValueError."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def read_served(text: str, profile: str) -> tuple[str, Address]:
    """Return protocol and address of ``PROTOCOL=HOST:PORT``. A protocol alone gets its usual port on
    loopback. Raises ValueError."""
    name, separator, where = text.partition("=")
    protocol = protocol_named(name)
    if name not in protocols_of(profile):
        raise ValueError(
            f"a {profile} does not speak {name}; it speaks {', '.join(protocols_of(profile))}"
        )
    return name, read_address(where) if separator else ("127.0.0.1", protocol.port)


def read_users(file: Path) -> dict[str, str]:
    """Return the passwords by user, from lines ``user:password``. Raises ValueError and OSError, with
    messages that contain no password."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_USERS_BYTES + 1).decode()
    except UnicodeDecodeError:
        raise ValueError(f"{file}: is not text in UTF-8") from None
    if len(text) > _USERS_BYTES:
        raise ValueError(f"{file}: has more than {_USERS_BYTES} bytes")
    lines = text.splitlines()
    passwords: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        user, separator, password = line.partition(":")
        if not line.strip():
            continue
        if not separator or not user or not password:
            raise ValueError(f"{file}, line {number}: not user:password")
        passwords[user] = password
    return passwords


def check_reach(
    served: Sequence[tuple[str, Address]], users: Mapping[str, str]
) -> None:
    """Raises ValueError for a protocol that others than this machine's users could use without a login."""
    without_login = {
        kind.protocol for kind in driver_kinds().values() if not kind.login
    }
    for name, (host, _) in served:
        if is_loopback(host):
            continue
        if name in without_login:
            raise ValueError(
                f"{name}={host}: it has no login, and is served on loopback only"
            )
        if not users:
            raise ValueError(
                f"{name}={host}: beyond loopback it needs users (--users FILE)"
            )


def checked(settings: Settings) -> Settings:
    """Check the settings of a switch that runs alone, and return them with all protocols of the profile whose
    packages are installed, on loopback, if none was chosen.

    Raises ValueError.
    """
    profile = settings.profile.name
    served = settings.serve or tuple(
        read_served(protocol, profile)
        for protocol in protocols_of(profile)
        if is_installed(protocol)
    )
    names = [protocol for protocol, _ in served]
    for protocol, (host, port) in served:
        if names.count(protocol) > 1:
            raise ValueError(f"{protocol} is named twice")
        example(protocol, f"{host}:{port}", "")
    check_reach(served, settings.users)
    rest = settings.rest
    if rest is not None and settings.rest_tokens is None and not is_loopback(rest[0]):
        raise ValueError(
            f"REST at {rest[0]}: beyond loopback it needs tokens (--rest-token-file FILE)"
        )
    for port in settings.failed_ports:
        if not 1 <= port <= 2 * settings.size:
            raise ValueError(f"there is no port {port} (1..{2 * settings.size})")
    return replace(settings, serve=served)


def is_installed(protocol: str) -> bool:
    """Return whether the packages are there that a protocol needs. Raises ValueError."""
    try:
        protocol_named(protocol)
    except ExtensionError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            return False
        raise
    return True


def example(protocol: str, address: str, user: str) -> str:
    """Return a command line for access to a switch at an address. ``user``: one of the switch's users, or
    empty. Raises ValueError for a protocol whose example has another placeholder than there are."""
    if protocol == "rest":
        return f"ringlight ocs fault list {address}"
    host, _, port = address.rpartition(":")
    placeholders = {
        "address": address,
        "host": host.strip("[]"),
        "port": port,
        "user": user or "anyone",
        "password": "PASSWORD" if user else "anything",
        "option": f"-u {user} " if user else "",
    }
    try:
        return protocol_named(protocol).example.format_map(placeholders)
    except KeyError as error:
        known = ", ".join(f"{{{name}}}" for name in placeholders)
        raise ValueError(
            f"the example of {protocol}: {{{error.args[0]}}} is none of {known}"
        ) from None
