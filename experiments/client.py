"""The controller's REST API as a person with curl sees it; every failure is one line."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from ringlight.testbed.certificates import trusting

#: Seconds that one call may take; a regroup or a job is a resource to watch, not a long call.
CALL_TIMEOUT_S = 30.0
#: Seconds that a regroup may take.
REGROUP_S = 120.0
#: What httpx raises where no answer comes: also for a host name that cannot be one.
_NO_ANSWER = (httpx.HTTPError, httpx.InvalidURL, UnicodeError)


class ApiError(RuntimeError):
    """A refusal of the controller; the message is its reason in one line.

    ``status``: HTTP status. ``document``: the answer, None if it is not JSON.
    """

    def __init__(self, status: int, detail: str, document: Any = None) -> None:
        super().__init__(detail)
        self.status = status
        self.document = document


class Unreachable(RuntimeError):
    """No controller answers at the address, or it is none; the message names it."""


class Api:
    """One controller at ``address`` (``host:port`` or a URL). Use as a context manager. ``what``: who answers
    there, if that is another.

    ``cacert``: file of the authorities that its certificate must come from (or the certificate itself), else
    those of this machine; with it an address without ``http:`` is one of TLS. ``anywhere``: the certificate
    need not name the address; for the machine that the certificate is on. ``patience_s``: the longest wait
    for an answer, seconds.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        what: str = "controller",
        cacert: str | None = None,
        anywhere: bool = False,
        patience_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self._what = what
        self.url = (
            address if "://" in address else f"http{'s' if cacert else ''}://{address}"
        )
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # To read the certificates of this machine takes longer than most calls, and few are encrypted.
        verify: bool | ssl.SSLContext = self.url.startswith("https:")
        if verify and cacert:
            verify = self._trusting(cacert, anywhere)
        try:
            self._client = httpx.Client(
                base_url=self.url,
                headers=headers,
                timeout=patience_s,
                trust_env=False,
                verify=verify,
            )
        except httpx.InvalidURL as error:
            raise self._unreachable(error) from None

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def _trusting(self, cacert: str, anywhere: bool) -> ssl.SSLContext:
        try:
            return trusting(cacert, anywhere=anywhere)
        except OSError as error:
            reason = error.strerror or getattr(error, "reason", None) or error
            raise Unreachable(
                f"{cacert}: certificates cannot be read from it: {reason}"
            ) from None

    def get(self, path: str, **query: Any) -> Any:
        return self.call("GET", path, query=query)

    def put(self, path: str, body: Any) -> Any:
        return self.call("PUT", path, body)

    def post(self, path: str, body: Any) -> Any:
        return self.call("POST", path, body)

    def delete(self, path: str) -> Any:
        return self.call("DELETE", path)

    def send(self, path: str, data: bytes) -> Any:
        """Put bytes that are not JSON. Return the decoded reply, or None if it is empty.

        Raises ApiError if the controller refuses, Unreachable if there is no reply or another program
        replies.
        """
        kind = {"content-type": "application/octet-stream"}
        return self._answer("PUT", path, content=data, headers=kind)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: dict[str, Any] | None = None,
    ) -> Any:
        """Send a request. Return the decoded reply, or None if it is empty.

        Raises ApiError if the controller refuses, Unreachable if there is no reply or another program
        replies.
        """
        parameters = {k: v for k, v in (query or {}).items() if v is not None}
        return self._answer(method, path, json=body, params=parameters)

    def _answer(self, method: str, path: str, **more: Any) -> Any:
        with self._asking():
            answer = self._client.request(method, path, **more)
        _check(answer)
        return self._decoded(answer.content) if answer.content else None

    def events(self, after: int) -> list[dict[str, Any]]:
        """Return the events that the controller has kept so far with an id above ``after``.

        Raises ApiError if the controller refuses, Unreachable if there is no reply or another program
        replies.
        """
        return list(self.stream(f"/v1/events?after={after}&seconds=0"))

    def stream(
        self, path: str, silence_s: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield server-sent events until the controller or the caller ends the stream.

        ``silence_s``: longest wait for the next line of the stream, seconds; None: without end.
        Raises ApiError if the controller refuses, Unreachable if there is no reply or another program
        replies.
        """
        patience = httpx.Timeout(CALL_TIMEOUT_S, read=silence_s)
        with (
            self._asking(),
            self._client.stream("GET", path, timeout=patience) as answer,
        ):
            _check(answer)
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    yield self._decoded(line[5:])

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn the absence of a reply into Unreachable."""
        try:
            yield
        except _NO_ANSWER as error:
            raise self._unreachable(error) from None

    def _decoded(self, text: str | bytes) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            # Some other program has the port.
            raise Unreachable(
                f"no {self._what} answers at {self.url}: the answer is not JSON"
            ) from None

    def _unreachable(self, error: Exception) -> Unreachable:
        if isinstance(error, httpx.InvalidURL | UnicodeError):
            return Unreachable(
                f"{self.url}: this is no address, such as 127.0.0.1:8080"
            )
        if isinstance(error, httpx.ConnectError) and "CERTIFICATE_VERIFY_FAILED" in str(
            error
        ):
            reason = (
                str(error)
                .partition("certificate verify failed: ")[2]
                .partition(" (_ssl")[0]
                or error
            )
            what = (
                f"the {self._what} at {self.url} has a certificate that is not trusted"
            )
            return Unreachable(f"{what}: {reason}")
        if isinstance(error, httpx.ConnectError):
            return Unreachable(f"no {self._what} answers at {self.url}{self._remedy()}")
        remedy = ""
        if isinstance(error, httpx.ReadError | httpx.RemoteProtocolError):
            # It may have ended meanwhile.
            remedy = self._remedy()
        elif isinstance(error, httpx.ReadTimeout):
            remedy = self._remedy(of_silence=True)
        what = f"the {self._what} at {self.url} did not answer"
        return Unreachable(f"{what}: {error or type(error).__name__}{remedy}")

    def _remedy(self, *, of_silence: bool = False) -> str:
        """Return what helps, after the message. ``of_silence``: the controller is there, and does not answer."""
        if self._what != "controller":
            return ""
        # Here, as nothing else needs it.
        from ringlight.testbed.standing_labs import standstill, what_helps

        address = self.url.partition("://")[2]
        line = standstill(address) if of_silence else what_helps(address)
        return f"; {line}" if line else ""


def _check(answer: httpx.Response) -> None:
    """Check a reply. Raises ApiError if it is a refusal."""
    if not answer.is_error:
        return
    answer.read()
    try:
        document = answer.json()
    except ValueError:
        document = None
    if isinstance(document, dict) and "detail" in document:
        detail = str(document["detail"])
    else:
        detail = answer.text.strip().partition("\n")[0] or answer.reason_phrase
    raise ApiError(answer.status_code, " ".join(detail.split()), document)


def regrouped(api: Api, jobs: list[str] | None, dry_run: bool) -> dict[str, Any]:
    """Have the controller regroup jobs (None: all). Return the document of the regroup, when it has ended.

    Raises ApiError if it is refused, TimeoutError if it has not ended after REGROUP_S seconds.
    """
    document: dict[str, Any] = api.post(
        "/v1/regroup", {"jobs": jobs, "dry_run": dry_run}
    )
    deadline = time.monotonic() + REGROUP_S
    while document["state"] == "APPLYING":
        if time.monotonic() > deadline:
            raise TimeoutError(f"{document['id']} was not done after {REGROUP_S:g} s")
        time.sleep(0.05)
        document = api.get(f"/v1/regroup/{document['id']}")
    return document
