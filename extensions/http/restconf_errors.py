"""RESTCONF's errors (RFC 8040, section 7), as the switch's web protocols that speak it share them."""

from __future__ import annotations

import json

from ringlight.extensions.http.http_session import HttpError
from ringlight.testbed.emulation.optical.commands import DeviceError, Fault

JSON, RESTCONF = "application/yang-data+json", "ietf-restconf"


class RestconfError(HttpError):
    """``tag`` is the error's name in RFC 6241, appendix A."""

    def __init__(self, status: int, tag: str, message: str) -> None:
        super().__init__(status, message)
        self.tag = tag


def told_error(error: HttpError) -> dict[str, str]:
    """Return one entry of ``errors``."""
    tag = error.tag if isinstance(error, RestconfError) else "malformed-message"
    kind = "protocol" if error.status in (401, 405, 406, 415) else "application"
    return {"error-type": kind, "error-tag": tag, "error-message": str(error)}


def error_body(error: HttpError) -> bytes:
    """Return ``errors`` with this error alone, in JSON."""
    return json.dumps({f"{RESTCONF}:errors": {"error": [told_error(error)]}}).encode()


def from_device(error: DeviceError) -> RestconfError:
    """Return the error that a client gets if the device has refused a command."""
    status, tag = {
        Fault.RANGE: (400, "invalid-value"),
        Fault.CONFLICT: (409, "in-use"),
        Fault.HARDWARE: (409, "resource-denied"),
    }[error.fault]
    return RestconfError(status, tag, str(error))
