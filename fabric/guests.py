"""Guests: programs that run beside the workers of a job, which then only hold their NICs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ringlight.fabric.extension import InstalledExtension, entries


@dataclass(frozen=True)
class GuestKind:
    """A kind of guests. Values are ``"module:object"``, as those of an extension.

    ``job``: the keys of a job in a scenario file that asks for such guests, and what they mean, a subclass of
    ``experiments.language.job_keys.JobKeys``. ``body``: the pydantic model of the key of ``POST /v1/jobs``
    that bears the kind's name; it has ``deadline_s``. ``invite``: makes a guest beside a worker. The server
    agent calls it as ``invite(host, settings, peers, image)``: a ``WorkerHost``, the fields of ``body`` but
    the deadline and with the ``port`` of the job, the addresses of all ranks, and the worker image. It
    returns a ``testbed.emulation.guests.Guest`` or raises WorkerError.
    """

    job: str
    body: str
    invite: str


@dataclass(frozen=True)
class InstalledGuestKind:
    """A kind of guests and the extension that adds it."""

    kind: GuestKind
    extension: InstalledExtension

    def job(self) -> Any:
        """Return the keys of a job. Raises ExtensionError."""
        return self.extension.load(self.kind.job)

    def body(self) -> Any:
        """Return the model of the key of a request. Raises ExtensionError."""
        return self.extension.load(self.kind.body)

    def invite(self) -> Any:
        """Return the function that makes a guest. Raises ExtensionError."""
        return self.extension.load(self.kind.invite)


@cache
def guest_kinds() -> Mapping[str, InstalledGuestKind]:
    """Return all kinds of guests by name. Raises ExtensionError."""
    return {
        name: InstalledGuestKind(item.load(value), item)
        for name, (item, value) in entries("guests").items()
    }
