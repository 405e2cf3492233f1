"""Addresses of a lab's controller."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Addresses:
    """Addresses at which the controller listens, as ``host:port``, and their protection.

    ``token``: required from every caller. ``tls``: files of REST's certificate and its key. ``insecure``:
    which of ``rest`` and ``openflow`` may be open beyond loopback without TLS.
    """

    rest: str = "127.0.0.1:8080"
    openflow: str = "127.0.0.1:6653"
    token: str | None = None
    tls: tuple[Path, Path] | None = None
    insecure: frozenset[str] = frozenset()

    @property
    def url(self) -> str:
        """Base URL of the REST API."""
        return f"http{'s' if self.tls else ''}://{self.rest}"

    @property
    def cacert(self) -> str | None:
        """Return the file that the controller's certificate is checked with; None without TLS."""
        return None if self.tls is None else str(self.tls[0].absolute())
