"""User name and password of a device, from the environment or a file; never from the fabric file.

An inventory entry says where they are, not what they are: ``username``, and ``password_env`` (a variable of
the controller's environment) or ``password_file`` (a path; its first line). Whoever holds a password hands it
to :class:`~controller.optical.base.OpticalSwitchDriver` as one of its ``secrets``, so that no error shows it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: A password longer than this is a file that was named by mistake.
MAX_PASSWORD_BYTES = 4096


@dataclass(frozen=True)
class Credentials:
    """``password`` is not in ``repr``."""

    username: str
    password: str = field(default="", repr=False)


def read_credentials(name: str, entry: Mapping[str, Any]) -> Credentials | None:
    """Read the credentials that an optical switch's entry points at; None if it names no user.

    Raises ValueError naming the switch and the key, never the password.
    """

    def wrong(key: str, text: str) -> ValueError:
        return ValueError(f"optical switch {name}: {key}: {text}")

    if "password" in entry:
        raise wrong("password", "belongs in the environment (password_env) or a file (password_file)")
    username, variable, path = (entry.get(key) for key in ("username", "password_env", "password_file"))
    if variable is not None and path is not None:
        raise wrong("password_file", "there is a password_env too; keep one of them")
    if username is None:
        if variable is not None or path is not None:
            raise wrong("username", "is missing; there is a password")
        return None
    if not isinstance(username, str) or not username or not username.isprintable():
        raise wrong("username", f"{username!r} is not a user's name")
    if variable is not None:
        password = os.environ.get(str(variable))
        if password is None:
            raise wrong("password_env", f"there is no variable {variable} in the environment")
        return Credentials(username, password)
    if path is None:
        return Credentials(username)
    try:
        with Path(str(path)).open("rb") as file:
            line = file.readline(MAX_PASSWORD_BYTES + 1)
        text = line.decode().rstrip("\r\n")
    except OSError as error:
        raise wrong("password_file", f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise wrong("password_file", f"{path} is not text in UTF-8") from None
    if not text or len(line) > MAX_PASSWORD_BYTES:
        raise wrong("password_file", f"the first line of {path} is not a password")
    return Credentials(username, text)
