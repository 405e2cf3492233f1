"""Calls of the controller's REST API with the standard library, for programs that start for each job."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

from ringlight.extensions.slurm.partitions import SlurmError
from ringlight.extensions.slurm.site import Site
from ringlight.testbed.certificates import trusting

#: Longest wait for an answer unless the caller has another, and between two attempts, seconds.
ANSWER_S, AGAIN_S = 10.0, 0.2


class ControllerSilentError(SlurmError):
    """No controller answers; the call may be repeated."""


class Refused(SlurmError):
    """The controller refuses a call; ``status``: of HTTP, the message is its reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def call(
    site: Site,
    method: str,
    path: str,
    body: Any = None,
    patience_s: float = 0.0,
    answer_s: float = ANSWER_S,
) -> Any:
    """Send a request and return the answer. Raises Refused, ControllerSilentError, and SlurmError for an answer
    that is not a controller's.

    ``patience_s``: so long the call is repeated if no connection can be made, or the connection ends: a
    controller that died is back within seconds. ``answer_s``: longest wait for an answer, seconds: a controller
    that stands still accepts connections.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return _call(site, method, path, body, answer_s)
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() > deadline:
                raise ControllerSilentError(
                    f"no controller answers at {site.url}: {error}"
                ) from None
        time.sleep(AGAIN_S)


def _call(site: Site, method: str, path: str, body: Any, answer_s: float) -> Any:
    try:
        connection = _connection(site, answer_s)
    except ValueError as error:
        raise SlurmError(f"{site.url}: no address of a controller: {error}") from None
    headers = {"content-type": "application/json"}
    if (token := site.token()) is not None:
        headers["authorization"] = f"Bearer {token}"
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, headers)
        answer = connection.getresponse()
        document = json.loads(answer.read() or b"null")
    except ValueError as error:
        raise SlurmError(
            f"{site.url}: not a controller of Ringlight: {error}"
        ) from None
    finally:
        connection.close()
    if answer.status >= 400:
        detail = document.get("detail") if isinstance(document, dict) else None
        raise Refused(answer.status, str(detail or answer.reason))
    return document


def _connection(site: Site, timeout_s: float) -> http.client.HTTPConnection:
    url = urlsplit(site.url)
    host, port = url.hostname or "127.0.0.1", url.port
    if url.scheme != "https":
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    if site.cacert is None:
        context = ssl.create_default_context()
    else:
        context = trusting(site.cacert, anywhere=site.own_certificate)
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
