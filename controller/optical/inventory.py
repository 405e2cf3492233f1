"""An optical switch's entry in the controller's inventory, read key by key.

The entry says where user name and password are, not what they are: ``username``, and ``password_env`` (a
variable of the controller's environment) or ``password_file`` (a path; its first line). Drivers hand
`secrets_of` to their base class, so that no error shows them.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: A password longer than this is a file that was named by mistake.
MAX_PASSWORD_BYTES = 4096
_ADDRESS = re.compile(r"(\[[^\]\s]+\]|[^:\s\[\]]+)(?::(\d{1,5}))?", re.ASCII)


@dataclass(frozen=True)
class Credentials:
    """``password`` is not in ``repr``."""

    username: str
    password: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """Token of HTTP's basic authentication."""
        return base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


def secrets_of(credentials: Credentials | None) -> list[str]:
    """Return the texts that must never be shown: the password, plain and as HTTP sends it."""
    return [credentials.password, credentials.basic] if credentials else []


@dataclass(frozen=True)
class Entry:
    """``switch`` is its name. Every reader raises ValueError that names the switch and the key."""

    switch: str
    keys: Mapping[str, Any]

    def wrong(self, key: str, text: str) -> ValueError:
        return ValueError(f"optical switch {self.switch}: {key}: {text}")

    @property
    def profile(self) -> Mapping[str, Any]:
        """Declared timing (`Timing.from_profile`)."""
        mapping: Mapping[str, Any] = self.keys.get("profile", {})
        return mapping

    def flag(self, key: str, default: bool) -> bool:
        value = self.keys.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, f"{value!r} is neither true nor false")
        return value

    def text(self, key: str) -> str | None:
        value = self.keys.get(key)
        return None if value is None else str(value)

    def address(self, usual_port: int = 0) -> tuple[str, int]:
        """Return host and TCP port of ``{"address": "host:port"}``.

        The brackets of an IPv6 address are removed. ``usual_port``: port if the address has none; 0: the
        address must have one. Raises ValueError, and KeyError without an address.
        """
        match = _ADDRESS.fullmatch(str(self.keys["address"]))
        if match is None or not 0 < int(match[2] or usual_port) < 1 << 16:
            raise self.wrong("address", f"{self.keys['address']!r} is not host:port")
        return match[1].strip("[]"), int(match[2] or usual_port)

    def credentials(self) -> Credentials | None:
        """Return the credentials that the entry refers to; None if it names no user.

        Raises ValueError. No error shows the password.
        """
        if "password" in self.keys:
            raise self.wrong(
                "password",
                "belongs in the environment (password_env) or a file (password_file)",
            )
        username, variable, path = (
            self.keys.get(key) for key in ("username", "password_env", "password_file")
        )
        if variable is not None and path is not None:
            raise self.wrong(
                "password_file", "there is a password_env too; keep one of them"
            )
        if username is None:
            if variable is not None or path is not None:
                raise self.wrong("username", "is missing; there is a password")
            return None
        if not isinstance(username, str) or not username or not username.isprintable():
            raise self.wrong("username", f"{username!r} is not a user's name")
        if variable is not None:
            password = os.environ.get(str(variable))
            if password is None:
                raise self.wrong(
                    "password_env",
                    f"there is no variable {variable} in the environment",
                )
            return Credentials(username, password)
        return (
            Credentials(username)
            if path is None
            else Credentials(username, self._first_line(str(path)))
        )

    def _first_line(self, path: str) -> str:
        try:
            with Path(path).open("rb") as file:
                line = file.readline(MAX_PASSWORD_BYTES + 1)
            text = line.decode().rstrip("\r\n")
        except OSError as error:
            raise self.wrong("password_file", f"{path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise self.wrong("password_file", f"{path} is not text in UTF-8") from None
        if not text or len(line) > MAX_PASSWORD_BYTES:
            raise self.wrong(
                "password_file", f"the first line of {path} is not a password"
            )
        return text
