"""The controller's REST API as a person with curl sees it; every failure is one line."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from typing import Any

import httpx

from ringlight.testbed.certificates import trusting

#: Seconds that one call may take; a regroup or a job is a resource to watch, not a long call.
CALL_TIMEOUT_S = 30.0
#: What httpx raises where no answer comes: also for a host name that cannot be one.
_NO_ANSWER = (httpx.HTTPError, httpx.InvalidURL, UnicodeError)


class ApiError(RuntimeError):
    """The controller refused; ``status`` is the HTTP status, the message its one-line reason. ``document``:
    the answer, where it is JSON."""

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
    need not name the address; for the machine that the certificate is on.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        what: str = "controller",
        cacert: str | None = None,
        anywhere: bool = False,
    ) -> None:
        self._what = what
        self.url = address if "://" in address else f"http{'s' if cacert else ''}://{address}"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # To read the certificates of this machine takes longer than most calls, and few are encrypted.
        verify: bool | ssl.SSLContext = self.url.startswith("https:")
        if verify and cacert:
            verify = self._trusting(cacert, anywhere)
        try:
            self._client = httpx.Client(
                base_url=self.url, headers=headers, timeout=CALL_TIMEOUT_S, trust_env=False, verify=verify
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
            raise Unreachable(f"{cacert}: certificates cannot be read from it: {reason}") from None

    def get(self, path: str, **query: Any) -> Any:
        return self.call("GET", path, query=query)

    def put(self, path: str, body: Any) -> Any:
        return self.call("PUT", path, body)

    def post(self, path: str, body: Any) -> Any:
        return self.call("POST", path, body)

    def delete(self, path: str) -> Any:
        return self.call("DELETE", path)

    def send(self, path: str, data: bytes) -> Any:
        """Put bytes that are no JSON. Answers and raises as :meth:`call`."""
        kind = {"content-type": "application/octet-stream"}
        return self._answer("PUT", path, content=data, headers=kind)

    def call(self, method: str, path: str, body: Any = None, query: dict[str, Any] | None = None) -> Any:
        """The decoded answer. Raises ApiError for a refusal, Unreachable for no answer or one of others."""
        parameters = {k: v for k, v in (query or {}).items() if v is not None}
        return self._answer(method, path, json=body, params=parameters)

    def _answer(self, method: str, path: str, **more: Any) -> Any:
        try:
            answer = self._client.request(method, path, **more)
        except _NO_ANSWER as error:
            raise self._unreachable(error) from None
        if answer.is_error:
            raise ApiError(answer.status_code, _detail(answer), _document(answer))
        return self._decoded(answer.content) if answer.content else None

    def events(self, after: int) -> list[dict[str, Any]]:
        """The kept events with higher ids, as there are now. Raises as :meth:`call`."""
        try:
            answer = self._client.get("/v1/events", params={"after": after, "seconds": 0})
        except _NO_ANSWER as error:
            raise self._unreachable(error) from None
        if answer.is_error:
            raise ApiError(answer.status_code, _detail(answer))
        lines = answer.text.splitlines()
        return [self._decoded(line[5:]) for line in lines if line.startswith("data:")]

    def stream(self, path: str) -> Iterator[dict[str, Any]]:
        """Server-sent events until the controller or the caller ends it."""
        try:
            with self._client.stream("GET", path, timeout=httpx.Timeout(CALL_TIMEOUT_S, read=None)) as answer:
                if answer.is_error:
                    answer.read()
                    raise ApiError(answer.status_code, _detail(answer))
                for line in answer.iter_lines():
                    if line.startswith("data:"):
                        yield self._decoded(line[5:])
        except _NO_ANSWER as error:
            raise self._unreachable(error) from None

    def _decoded(self, text: str | bytes) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            # Some other program has the port.
            raise Unreachable(f"no {self._what} answers at {self.url}: the answer is not JSON") from None

    def _unreachable(self, error: Exception) -> Unreachable:
        if isinstance(error, httpx.InvalidURL | UnicodeError):
            return Unreachable(f"{self.url}: this is no address, such as 127.0.0.1:8080")
        if isinstance(error, httpx.ConnectError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
            reason = str(error).partition("certificate verify failed: ")[2].partition(" (_ssl")[0] or str(
                error
            )
            return Unreachable(
                f"the {self._what} at {self.url} has a certificate that is not trusted: {reason}"
            )
        if isinstance(error, httpx.ConnectError):
            return Unreachable(f"no {self._what} answers at {self.url}{self._remedy()}")
        return Unreachable(f"the {self._what} at {self.url} did not answer: {error or type(error).__name__}")

    def _remedy(self) -> str:
        if self._what != "controller":
            return ""
        # Here, as nothing else needs it.
        from ringlight.testbed.processes import what_helps

        return f"; {what_helps(self.url.partition('://')[2])}"


def _document(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None


def _detail(answer: httpx.Response) -> str:
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = answer.text.strip().splitlines()[0] if answer.text.strip() else answer.reason_phrase
    return " ".join(str(detail).split())
