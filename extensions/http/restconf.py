"""Shared parts of the drivers over RESTCONF (RFC 8040) in JSON: headers, and replies to writes."""

from __future__ import annotations

from ringlight.controller.optical.errors import Refused, StaleRevision
from ringlight.controller.optical.inventory import Credentials
from ringlight.extensions.http.http_client import Reply
from ringlight.fabric.text import parse_json

MEDIA_TYPE = "application/yang-data+json"


def headers_of(credentials: Credentials | None) -> dict[str, str]:
    """Return the headers of every request: the accepted media type, and the credentials if there are any."""
    headers = {"accept": MEDIA_TYPE}
    if credentials is not None:
        headers["authorization"] = f"Basic {credentials.basic}"
    return headers


def parse_error(body: bytes) -> str:
    """Return tag and message of the first of the ``errors`` in a reply; empty if there are none."""
    try:
        document = parse_json(body)
        first = document["ietf-restconf:errors"]["error"][0]
        return f"{first['error-tag']}: {str(first.get('error-message', ''))[:200]}"
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        RecursionError,
    ):
        return ""


def check_write(reply: Reply, what: str) -> None:
    """Check the reply to a write.

    Raises StaleRevision, Refused, AuthFailed, PermissionDenied or Indeterminate unless the write succeeded.
    """
    if reply.status == 412:
        raise StaleRevision(
            f"{what}: the switch changed after it was read; nothing was written"
        )
    why = parse_error(reply.body)
    if why and 400 <= reply.status < 500 and reply.status not in (401, 403, 408):
        raise Refused(f"{what}: {why}")
    reply.check_write(what)
