"""Refuse requests of foreign web pages, and calls without the token if there is one.

A browser lets any page send requests to a lab on its reader's machine. Three of their headers no page can
forge: ``Origin`` names the page's own site, and ``Host`` the name that was looked up, which gives away a
foreign name made to point here (DNS rebinding). ``Sec-Fetch-Site`` says whether the page is of this server,
also for what has no ``Origin``: a picture, a script or a frame whose address is one of ours. The page could
not read the answer, but an application's route may do something at a GET. Before a body declared to be JSON a
browser asks for leave, which is not given here; so a body that is not is refused.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
import socket
import ssl
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ringlight.controller.errors import StartError

_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
#: Of this server, and of nobody: what was typed, or a bookmark.
_OWN_SITES = frozenset({"same-origin", "none"})
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^][:/@\s]+)(?::(\d+))?")

#: A file of tokens, bytes.
_TOKENS_BYTES = 1 << 16
#: Content type of a body that is not JSON.
BINARY = "application/octet-stream"
#: Names in the audit log of a caller whose token has no name, and of a caller that needs no token.
NAMELESS, ANYBODY = "token", "rest"


def read_tokens(path: Path) -> dict[str, str]:
    """Return the name of each token in a file: one token a line, optionally preceded by its name and a space.

    Raises StartError naming the file, and the line if there are several, if the file cannot be read, a token
    is too short, or two are equal.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_TOKENS_BYTES + 1).decode()
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise StartError(f"{path}: it is no text in UTF-8") from None
    if len(text) > _TOKENS_BYTES:
        raise StartError(f"{path}: a file of tokens has at most {_TOKENS_BYTES} bytes")
    lines = text.strip().splitlines()
    names: dict[str, str] = {}
    for number, line in enumerate(lines or [""], start=1):
        name, _, token = line.strip().rpartition(" ")
        where = f"{path}:{number}" if len(lines) > 1 else str(path)
        if (
            len(token) < 16
            or not token.isascii()
            or not token.isprintable()
            or token in names
        ):
            raise StartError(
                f"{where}: a token is one line of at least 16 ASCII characters without spaces; none twice"
            )
        if name and not _NAME.fullmatch(name):
            raise StartError(
                f"{where}: before a token stands its name, letters, digits and . _ @ - alone"
            )
        names[token] = name or NAMELESS
    return names


def is_loopback(host: str) -> bool:
    """Return whether every address of the host name is a loopback address; false for an unknown name."""
    try:
        addresses = {
            info[4][0]
            for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        }
    except OSError:
        return False
    return bool(addresses) and all(
        ipaddress.ip_address(str(address)).is_loopback for address in addresses
    )


def is_local(host: str) -> bool:
    """Return whether a host, as it is written, is an address of loopback or ``localhost``. No name is
    looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_doors(
    rest: str,
    openflow: str,
    *,
    token: bool,
    tls: bool,
    rest_insecure: bool = False,
    openflow_tls: bool = False,
    openflow_insecure: bool = False,
) -> None:
    """Raise StartError for an address (``HOST:PORT``) beyond loopback that is more open than was stated."""
    if not is_loopback(_host(rest)):
        if not token:
            raise StartError(
                f"--rest {rest}: not a loopback address; that needs a token (RINGLIGHT_TOKEN)"
            )
        if not (tls or rest_insecure):
            raise StartError(
                f"--rest {rest}: not a loopback address, and without TLS anybody on the way reads the token;"
                " give --tls-cert and --tls-key, or --rest-insecure to go without"
            )
    if not is_loopback(_host(openflow)) and not (openflow_tls or openflow_insecure):
        raise StartError(
            f"--openflow {openflow}: not a loopback address, and OpenFlow asks nobody who they are: whoever"
            " reaches the port can be a switch; give --openflow-insecure to open it all the same"
        )


def check_tls(cert: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """Return the files of a certificate and its key, if both are given and match; None if neither is given.

    Raises StartError.
    """
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise StartError(
            f"--tls-{'cert' if cert is None else 'key'}: missing; TLS needs certificate and key"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for path in (cert, key):
        try:
            path.open("rb").close()
        except OSError as error:
            raise StartError(f"{path}: {error.strerror}") from None
    try:
        # An empty password: nobody is there to be asked for one.
        context.load_cert_chain(cert, key, password="")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise StartError(f"--tls-cert {cert}, --tls-key {key}: {reason}") from None
    return cert, key


class OwnPagesOnly:
    """ASGI middleware: 403 unless ``Host``, ``Origin`` and ``Sec-Fetch-Site`` are those of own pages.

    Own is the machine's loopback, the address that the connection was made to, and ``names``. ``Origin``, if
    there is one, must have the port of ``Host`` too: a page of another server on this machine is a stranger.
    A link from elsewhere may be followed.
    """

    def __init__(self, app: Any, names: Collection[str] = ()) -> None:
        self._app = app
        self._names = {
            "localhost",
            "127.0.0.1",
            "::1",
            *(name.lower() for name in names),
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] in ("http", "websocket") and (
            complaint := self._complaint(scope)
        ):
            await refuse(scope, send, 403, complaint)
            return
        await self._app(scope, receive, send)

    def _complaint(self, scope: Any) -> str | None:
        hosts, origins = headers(scope, "host"), headers(scope, "origin")
        here = str((scope.get("server") or ("",))[0]).removeprefix("::ffff:")
        host = _authority(hosts[0]) if len(hosts) == 1 else None
        if host is None or host[0] not in self._names | {here}:
            return f"Host {_shown(hosts)} is no name of this server; allow it with RINGLIGHT_ALLOW_HOSTS"
        for origin in origins:
            scheme, _, rest = origin.partition("://")
            site = _authority(rest) if scheme in ("http", "https") else None
            if (
                site is None
                or site[0] not in self._names | {here}
                or site[1] != host[1]
            ):
                return f"a page of {_shown(origins)} may not call this server"
        sites = headers(scope, "sec-fetch-site")
        if not _OWN_SITES.issuperset(sites) and not _follows_link(scope):
            return "a page of another site may not call this server"
        return None


class JsonBodies:
    """ASGI middleware: 415 for a body below ``/v1`` that is not declared to be ``application/json``.

    ``binary``: beginnings of paths whose bodies are :data:`BINARY` instead.
    """

    def __init__(self, app: Any, binary: Collection[str] = ()) -> None:
        self._app = app
        self._binary = tuple(binary)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if (
            scope["type"] == "http"
            and scope["path"].startswith("/v1/")
            and has_body(scope)
        ):
            kinds = [
                kind.partition(";")[0].strip()
                for kind in headers(scope, "content-type")
            ]
            binary = scope["path"].startswith(self._binary)
            expected = BINARY if binary else "application/json"
            if kinds != [expected]:
                what = "binary" if binary else "JSON"
                detail = (
                    f"the body must be {what}, with the header Content-Type: {expected}"
                )
                await refuse(scope, send, 415, detail)
                return
        await self._app(scope, receive, send)


class TokenRequired:
    """ASGI middleware: 401 for a request without ``Authorization: Bearer TOKEN``.

    The state of any other request has the token's name as ``who``. ``tokens``: name of each token.
    """

    def __init__(self, app: Any, tokens: Mapping[str, str]) -> None:
        self._app = app
        self._expected = [
            (f"Bearer {token}".encode(), name) for token, name in tokens.items()
        ]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] in ("http", "websocket"):
            given = dict(scope["headers"]).get(b"authorization", b"")
            # Constant time, so that the token cannot be found byte by byte.
            named = [
                name
                for token, name in self._expected
                if hmac.compare_digest(given, token)
            ]
            if not named:
                detail = "this call needs the header Authorization: Bearer TOKEN"
                await refuse(
                    scope, send, 401, detail, [(b"www-authenticate", b"Bearer")]
                )
                return
            scope.setdefault("state", {})["who"] = named[0]
        await self._app(scope, receive, send)


def _follows_link(scope: Any) -> bool:
    """Return whether the answer becomes the page in the browser, instead of the page with the link."""
    expected = {"sec-fetch-mode": ["navigate"], "sec-fetch-dest": ["document"]}
    whole = all(headers(scope, name) == values for name, values in expected.items())
    return whole and scope.get("method") == "GET"


def has_body(scope: Any) -> bool:
    return bool(headers(scope, "transfer-encoding")) or any(
        length.strip("0") for length in headers(scope, "content-length")
    )


def headers(scope: Any, name: str) -> list[str]:
    """Return every value of a header, in lower case."""
    return [
        value.decode("latin-1").strip().lower()
        for key, value in scope["headers"]
        if key == name.encode()
    ]


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _authority(text: str) -> tuple[str, str] | None:
    """Return name and port of ``name``, ``name:port`` or ``[address]:port``; the port is ``""`` if none is
    given.

    None if the text has another form.
    """
    match = _AUTHORITY.fullmatch(text)
    return None if match is None else (match[1].strip("[]"), match[2] or "")


def _shown(values: Collection[str]) -> str:
    return ", ".join(repr(value[:80]) for value in values) or "(none)"


async def refuse(
    scope: Any,
    send: Any,
    status: int,
    detail: str,
    headers: Collection[tuple[bytes, bytes]] = (),
) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": detail})
        return
    body = json.dumps({"detail": detail}).encode()
    start = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
