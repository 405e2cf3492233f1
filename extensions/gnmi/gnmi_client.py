"""gNMI as a client of switches: one channel over gRPC (grpcio, with the messages that pygnmi brings).

A write is never repeated. Needs ``pip install 'ringlight[gnmi]'``. What is in a switch's tree is its driver's
to know.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from pygnmi.spec.v080 import gnmi_pb2 as gnmi
from pygnmi.spec.v080.gnmi_pb2_grpc import gNMIStub

from ringlight.controller.optical.connection import ask_again
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import (
    AuthFailed,
    DeadlineExceeded,
    Indeterminate,
    OpticalError,
    PermissionDenied,
    ProtocolError,
    Refused,
    Unreachable,
)
from ringlight.controller.optical.inventory import Credentials, Entry
from ringlight.fabric.text import parse_json

#: Longest wait for the answer to a question, seconds.
REPLY_S = 5.0
#: A longer answer is refused; 2 x 4,096 ports are 4 MB.
MAX_ANSWER_BYTES = 1 << 26


class NotThere(Refused):
    """The switch reports that there is nothing at a path."""


@dataclass(frozen=True)
class Access:
    """Address and credentials of a switch.

    ``ca_file``: authorities for the switch's certificate, instead of the system's. ``server_name``: name in
    its certificate, if that is not ``host``. ``tls``: if false, user name and password are sent unencrypted.
    """

    host: str
    port: int
    credentials: Credentials | None = None
    tls: bool = True
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None


def access_of(entry: Entry) -> Access:
    """Return address and credentials from an inventory entry.

    The keys are ``address``, ``tls``, ``ca_file``, ``cert_file``, ``key_file``, ``server_name``, and the
    credentials' keys. Raises ValueError, and KeyError without an address.
    """
    host, port = entry.address()
    named = ("ca_file", "cert_file", "key_file")
    files = {
        key: Path(str(entry.keys[key])) if entry.keys.get(key) else None
        for key in named
    }
    if (files["cert_file"] is None) != (files["key_file"] is None):
        raise entry.wrong("key_file", "cert_file and key_file go together")
    tls, server_name = entry.flag("tls", True), entry.text("server_name")
    return Access(
        host, port, entry.credentials(), tls, **files, server_name=server_name
    )


#: Status codes by which the switch rejects a Set; it has changed nothing then.
_NO = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNIMPLEMENTED,
)


#: An element of a path: a name, or a list's name and the values of its key leaves.
Elem = str | tuple[str, Mapping[str, str]]


def path_of(elems: Iterable[Elem], origin: str = "") -> Any:
    """Return a path as a gNMI message."""
    path_elems = [
        gnmi.PathElem(name=elem)
        if isinstance(elem, str)
        else gnmi.PathElem(name=elem[0], key=dict(elem[1]))
        for elem in elems
    ]
    return gnmi.Path(origin=origin, elem=path_elems)


class GnmiClient:
    """Client with one channel, opened on demand and reopened after an error. Not for several threads."""

    def __init__(self, name: str, access: Access) -> None:
        self.name = name
        self._access = access
        self._channel: Any = None
        self._stub: Any = None
        secret = access.credentials
        self._metadata = (
            [("username", secret.username), ("password", secret.password)]
            if secret
            else []
        )
        #: Encoding of the switch; chosen when the driver is opened.
        self.encoding = gnmi.JSON_IETF

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = self._stub = None

    def _open(self) -> Any:
        if self._stub is not None:
            return self._stub
        access = self._access
        host = f"[{access.host}]" if ":" in access.host else access.host
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
            ("grpc.max_send_message_length", MAX_ANSWER_BYTES),
            # A new channel is a new connection, which does not wait because an earlier one failed.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
        ]
        if access.server_name is not None:
            options.append(("grpc.ssl_target_name_override", access.server_name))
        if not access.tls:
            self._channel = grpc.insecure_channel(f"{host}:{access.port}", options)
        else:

            def content(path: Path | None) -> bytes | None:
                try:
                    return None if path is None else path.read_bytes()
                except OSError as error:
                    raise Unreachable(f"{path}: {error.strerror}") from None

            credentials = grpc.ssl_channel_credentials(
                content(access.ca_file),
                content(access.key_file),
                content(access.cert_file),
            )
            self._channel = grpc.secure_channel(
                f"{host}:{access.port}", credentials, options
            )
        self._stub = gNMIStub(self._channel)
        return self._stub

    def capabilities(self, deadline: Deadline) -> Any:
        """Return the switch's capabilities.

        Raises Unreachable, DeadlineExceeded, AuthFailed, PermissionDenied, Refused (NotThere), ProtocolError.
        """
        return self._ask(
            lambda: self._open().Capabilities, gnmi.CapabilityRequest(), deadline
        )

    def get(self, paths: Sequence[Any], deadline: Deadline, target: str = "") -> Any:
        """Read these paths (:func:`path_of`) of a ``target``. Return the response message.

        Raises Unreachable, DeadlineExceeded, AuthFailed, PermissionDenied, Refused (NotThere), ProtocolError.
        """
        prefix = gnmi.Path(target=target) if target else None
        request = gnmi.GetRequest(prefix=prefix, path=paths, encoding=self.encoding)
        return self._ask(lambda: self._open().Get, request, deadline)

    def value(self, content: Any) -> Any:
        """Return a value as a gNMI message, as JSON in the encoding that the switch accepts."""
        text = json.dumps(content).encode()
        ietf = self.encoding == gnmi.JSON_IETF
        return (
            gnmi.TypedValue(json_ietf_val=text)
            if ietf
            else gnmi.TypedValue(json_val=text)
        )

    def choose_encoding(self, capabilities: Any) -> None:
        """Choose the better of the encodings that the switch supports. Raises ProtocolError."""
        known = capabilities.supported_encodings
        if gnmi.JSON_IETF in known or not known:
            self.encoding = gnmi.JSON_IETF
        elif gnmi.JSON in known:
            self.encoding = gnmi.JSON
        else:
            raise ProtocolError("the switch gives neither JSON_IETF nor JSON")

    def _ask(self, method: Callable[[], Any], request: Any, deadline: Deadline) -> Any:
        def call() -> Any:
            try:
                return method()(
                    request,
                    timeout=min(deadline.check(), REPLY_S),
                    metadata=self._metadata,
                )
            except grpc.RpcError as error:
                raised = self._said(error)
                self.close()
                raise raised from None

        return ask_again(self._stub is not None, call)

    def set(self, request: Any, deadline: Deadline) -> None:
        """Send a Set request.

        Raises DeadlineExceeded if nothing was sent, Refused, AuthFailed or PermissionDenied if the switch
        rejected it, Indeterminate if the outcome is unknown.
        """
        stub = self._open()
        left_s = deadline.check()
        try:
            stub.Set(request, timeout=left_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raised = self._said(error)
            if error.code() in _NO or isinstance(raised, AuthFailed | PermissionDenied):
                raise raised from None
            self.close()
            raise Indeterminate(f"no end of the change seen: {raised}") from None

    def _said(self, error: Any) -> OpticalError:
        """Return the OpticalError for a failed read; for a failed change see :meth:`set`."""
        code, words = error.code(), " ".join(str(error.details() or "").split())[:300]
        message = f"{code.name}: {words}" if words else code.name
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return AuthFailed(message)
        if code is grpc.StatusCode.PERMISSION_DENIED:
            return PermissionDenied(message)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded("no answer in time")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return Unreachable(f"{self._access.host}:{self._access.port}: {message}")
        if code is grpc.StatusCode.NOT_FOUND:
            return NotThere(message)
        return Refused(message) if code in _NO else ProtocolError(message)


def updates_of(response: Any) -> Iterator[tuple[int, list[str], dict[str, str], Any]]:
    """Yield each update of a response to a Get.

    An update is the number of its notification, the names of its path without those of models, the keys of
    its last element, and its JSON value. Raises ProtocolError.
    """
    for number, note in enumerate(response.notification):
        for update in note.update:
            elems = [*note.prefix.elem, *update.path.elem]
            names = [elem.name.rpartition(":")[2] for elem in elems]
            where = f"/{'/'.join(names)[:100]}"
            kind = update.val.WhichOneof("value")
            if kind not in ("json_val", "json_ietf_val"):
                raise ProtocolError(f"{where}: an answer as {kind}, not as JSON")
            try:
                value = parse_json(getattr(update.val, kind))
            except (ValueError, RecursionError) as error:
                raise ProtocolError(
                    f"{where}: not JSON: {' '.join(str(error).split())[:100]}"
                ) from None
            yield number, names, dict(elems[-1].key) if elems else {}, value
