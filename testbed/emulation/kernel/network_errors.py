"""Refusals of the kernel's networking, as one error."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyroute2.netlink.exceptions import NetlinkError


class NetworkError(RuntimeError):
    """The kernel refused; one line naming the interface or namespace and the reason."""


def check(result: int, what: str) -> None:
    """Raises NetworkError if a function of the C library has failed."""
    if result:
        raise NetworkError(f"{what}: {os.strerror(ctypes.get_errno())}")


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Return a context that turns errors of the kernel into NetworkError, with ``what`` before the
    message."""
    try:
        yield
    except NetlinkError as error:
        raise NetworkError(f"{what}: {os.strerror(error.code)}") from None
    except OSError as error:
        raise NetworkError(f"{what}: {error.strerror or error}") from None
