"""Confine, end and remove Docker containers of jobs."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import docker
import docker.errors
import requests

#: What no container of a job may do.
CONFINED: Mapping[str, Any] = {
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "read_only": True,
}


def remove_container(api: docker.APIClient, container: str) -> None:
    """End a container and remove it with its volumes, if it is still there."""
    try:
        api.remove_container(container, force=True, v=True)
    except docker.errors.NotFound:
        pass
    except docker.errors.APIError as error:
        # Two removals at once: the other one will have done it.
        if error.status_code != requests.codes.conflict:
            raise


def exit_or_signal(status: int) -> tuple[int | None, int | None]:
    """Return the exit code, or else the signal, in Docker's status of a container's end, which is 128 plus
    the number of a signal.

    A program that ends with such a code by itself cannot be distinguished from one that was killed. The usual
    code 255 is not a signal.
    """
    number = status - 128
    return (None, number) if number in signal.valid_signals() else (status, None)
