"""gNMI from the device's side, whatever the model: bytes in, bytes out.

Capabilities, Get, Set and Subscribe (ONCE, POLL, STREAM) over gRPC without TLS, in JSON, JSON_IETF and,
leaf by leaf, PROTO. A model is a subclass of :class:`GnmiSession`, which says what is in the tree and what a
Set asks of the device. A Set answers when the device has carried it out, though perhaps not yet with light;
it is done as a whole or refused as a whole. A subscribed stream tells of a change within 0.1 s, whatever its
mode; SAMPLE besides tells everything at its interval.

Where the switch has users, each call must carry ``username`` and ``password`` in its metadata.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from google.protobuf.message import DecodeError
from pygnmi.spec.v080 import gnmi_pb2 as gnmi

from ringlight.extensions.gnmi.grpc_calls import (
    MAX_WAITING_BYTES,
    Call,
    CallError,
    Calls,
    Status,
)
from ringlight.extensions.gnmi.yang_tree import (
    Path,
    Step,
    TreeError,
    bare,
    find,
    in_empty_list,
    leaves,
    plain,
    shown,
)
from ringlight.fabric.text import parse_json
from ringlight.testbed.emulation.optical.commands import (
    NS,
    Command,
    DeviceError,
    Fault,
    Ticket,
)
from ringlight.testbed.emulation.optical.session import Switch

#: A stream looks this often for changes.
_LOOK_NS = NS // 10
_LEAST_INTERVAL_NS = NS // 10
_FAULTS = {
    Fault.RANGE: Status.INVALID_ARGUMENT,
    Fault.CONFLICT: Status.FAILED_PRECONDITION,
    Fault.HARDWARE: Status.FAILED_PRECONDITION,
}
_ENCODINGS = (gnmi.JSON, gnmi.JSON_IETF, gnmi.PROTO)
#: What a Set asks of the device, at most one command, and what is to be done once it has carried it out.
Asked = tuple[list[Command], Callable[[], None]]


def read_path(prefix: Any, path: Any) -> Path:
    """Return the steps of a path. Raises CallError."""
    if path.element or prefix.element:
        raise CallError(Status.UNIMPLEMENTED, "paths have elem, not the old element")
    return tuple(
        Step(
            bare(elem.name),
            tuple(sorted((bare(key), value) for key, value in elem.key.items())),
        )
        for elem in (*prefix.elem, *path.elem)
    )


def write_path(path: Path) -> Any:
    return gnmi.Path(
        elem=[gnmi.PathElem(name=step.name, key=dict(step.keys)) for step in path]
    )


def _scalar(leaf: Any) -> Any:
    """A leaf in the encoding PROTO."""
    match leaf:
        case bool():
            return gnmi.TypedValue(bool_val=leaf)
        case str():
            return gnmi.TypedValue(string_val=leaf)
        case float():
            return gnmi.TypedValue(float_val=leaf)
        case list():
            return gnmi.TypedValue(
                leaflist_val=gnmi.ScalarArray(element=map(_scalar, leaf))
            )
        case _:
            return gnmi.TypedValue(uint_val=int(leaf))


def json_value(node: Any, encoding: int) -> Any:
    """Return a value as JSON in one of gNMI's two encodings."""
    text = json.dumps(node, separators=(",", ":")).encode()
    ietf = encoding == gnmi.JSON_IETF
    return (
        gnmi.TypedValue(json_ietf_val=text) if ietf else gnmi.TypedValue(json_val=text)
    )


def read_value(value: Any) -> Any:
    """Return the Python value of a TypedValue. Raises CallError."""
    kind = value.WhichOneof("value")
    try:
        match kind:
            case "json_val" | "json_ietf_val":
                return parse_json(getattr(value, kind))
            case "string_val" | "ascii_val" | "bool_val" | "int_val" | "uint_val":
                return getattr(value, kind)
    except (ValueError, RecursionError) as error:
        raise CallError(
            Status.INVALID_ARGUMENT, f"a value that is not JSON: {error}"
        ) from None
    raise CallError(Status.UNIMPLEMENTED, f"a value as {kind} is not taken")


def _without(node: Any, name: str | None) -> Any:
    """Copy of a tree without the containers of that name."""
    if name is None or not isinstance(node, dict):
        return node
    copy = type(node)() if type(node) is dict else type(node)(key=node.key)  # type: ignore[attr-defined]
    for key, child in node.items():
        if key != name or not isinstance(child, dict):
            copy[key] = _without(child, name)
    return copy


@dataclass
class _Setting:
    """A Set that the device is carrying out."""

    call: Call
    ticket: Ticket
    then: Callable[[], None]
    answer: Any


@dataclass
class _Subscription:
    call: Call
    paths: list[Path]
    mode: int
    encoding: int
    updates_only: bool = False
    interval_ns: int = 0
    last_sent: dict[Path, Any] = field(default_factory=dict)
    look_ns: int = 0
    sample_ns: int = 0


class GnmiSession(ABC):
    """One client's connection.

    ``models``: name, organization and version of each; ``modules``: by name of node, the module that it is of
    where it is not its parent's; ``without``: the part of the tree that a type of Get leaves out.
    """

    models: ClassVar[Sequence[tuple[str, str, str]]] = ()
    modules: ClassVar[Mapping[str, str]] = {}
    without: ClassVar[Mapping[int, str]] = {}

    def __init__(self, switch: Switch) -> None:
        self._switch, self._device = switch, switch.device
        self._calls = Calls()
        self._fed: dict[int, Call] = {}
        self._settings: list[_Setting] = []
        self._subscriptions: list[_Subscription] = []

    @property
    def wants_bytes(self) -> bool:
        return self._calls.waiting_bytes < MAX_WAITING_BYTES

    @property
    def idle(self) -> bool:
        return not self._settings and not self._fed and not self._calls.waiting_bytes

    @property
    def over(self) -> bool:
        return self._calls.over

    @property
    def keeps_time(self) -> bool:
        """Return whether the session may idle: a subscriber to changes listens even if nothing changes."""
        return self.next_ns is not None

    @property
    def next_ns(self) -> int | None:
        due = [
            subscription.look_ns
            for subscription in self._subscriptions
            if subscription.mode == gnmi.SubscriptionList.STREAM
        ]
        return min(due, default=None)

    def feed(self, data: bytes) -> None:
        for call in self._calls.feed(data):
            self._fed[call.number] = call

    def interrupted(self, reply: bytes, now_ns: int) -> bytes:
        """Return the reply with an HTTP/2 ping before it, or after the settings that open a connection."""
        ping = self._calls.ping()
        return reply + ping if self._calls.opening else ping + reply

    def advance(self, now_ns: int) -> bytes:
        fed, self._fed = self._fed, {}
        for call in fed.values():
            try:
                self._go_on(call, now_ns)
            except CallError as error:
                self._calls.finish(call, error.status, str(error))
            except DecodeError:
                self._calls.finish(
                    call, Status.INVALID_ARGUMENT, "not the message of this call"
                )
        self._finish_settings()
        self._subscriptions = [
            open_subscription
            for open_subscription in self._subscriptions
            if not open_subscription.call.over
        ]
        for subscription in self._subscriptions:
            self._stream(subscription, now_ns)
        return self._calls.take()

    def _go_on(self, call: Call, now_ns: int) -> None:
        if call.over or call.trailers is not None:
            return
        self._admit(call)
        if call.method == "/gnmi.gNMI/Subscribe":
            self._subscribe(call, now_ns)
            return
        answers = {
            "/gnmi.gNMI/Capabilities": self._capabilities,
            "/gnmi.gNMI/Get": self._get,
            "/gnmi.gNMI/Set": self._set,
        }
        if call.method not in answers:
            raise CallError(Status.UNIMPLEMENTED, f"there is no {call.method[:80]}")
        if not call.ended:
            return
        if len(call.messages) != 1:
            raise CallError(Status.INVALID_ARGUMENT, "one message is wanted")
        answer = answers[call.method](call, call.messages.popleft(), now_ns)
        if answer is not None:
            self._calls.send(call, answer.SerializeToString())
            self._calls.finish(call)

    def _admit(self, call: Call) -> None:
        if not self._switch.admits(
            *(call.metadata.get(key, "") for key in ("username", "password"))
        ):
            raise CallError(Status.UNAUTHENTICATED, "user name and password, please")
        if self._device.wavelengths:
            raise CallError(Status.UNIMPLEMENTED, "the model has no wavelengths")

    def _capabilities(self, call: Call, message: bytes, now_ns: int) -> Any:
        gnmi.CapabilityRequest.FromString(message)
        return gnmi.CapabilityResponse(
            supported_models=[
                gnmi.ModelData(name=name, organization=organization, version=version)
                for name, organization, version in self.models
            ],
            supported_encodings=_ENCODINGS,
            gNMI_version="0.8.0",
        )

    @abstractmethod
    def _tree(self, paths: list[Path], now_ns: int) -> dict[str, Any]:
        """As much of the tree as the paths lead to. Raises TreeError."""

    @abstractmethod
    def _asked(self, request: Any) -> Asked:
        """Return the commands that a Set requests, and a function to call once they are carried out. Raises
        TreeError or CallError."""

    def _value(self, node: Any, encoding: int, place: Path) -> Any:
        """A container or a leaf, in JSON."""
        module = next(
            (
                self.modules[step.name]
                for step in reversed(place)
                if step.name in self.modules
            ),
            "",
        )
        ietf = encoding == gnmi.JSON_IETF
        document = plain(node, ietf, self.modules, module)
        if ietf and isinstance(document, dict):
            # The outermost names have their model's, whatever the path says.
            document = {
                name if ":" in name or not module else f"{module}:{name}": x
                for name, x in document.items()
            }
        return json_value(document, encoding)

    def _path(self, prefix: Any, path: Any) -> Path:
        """The steps of a path. Raises CallError."""
        return read_path(prefix, path)

    def _shown(self, path: Path) -> Any:
        """A path as an answer has it."""
        return write_path(path)

    def _refusal(self, error: DeviceError) -> str:
        """Return the text that a client gets if the device has refused a command."""
        return str(error)

    def _read(self, paths: list[Path], now_ns: int) -> dict[str, Any]:
        try:
            return self._tree(paths, now_ns)
        except TreeError as error:
            raise CallError(Status.RESOURCE_EXHAUSTED, str(error)) from None

    def _get(self, call: Call, message: bytes, now_ns: int) -> Any:
        request = gnmi.GetRequest.FromString(message)
        self._check_encoding(request.encoding)
        paths = [self._path(request.prefix, path) for path in request.path] or [
            self._path(request.prefix, gnmi.Path())
        ]
        root = self._read(paths, now_ns)
        notifications = []
        for path in paths:
            nodes = list(find(root, path))
            updates = [
                update
                for place, node in nodes
                for update in self._updates(
                    place,
                    _without(node, self.without.get(request.type)),
                    request.encoding,
                )
            ]
            if not nodes and not in_empty_list(root, path):
                raise CallError(Status.NOT_FOUND, f"{shown(path)} is not there")
            notifications.append(
                gnmi.Notification(timestamp=time.time_ns(), update=updates)
            )
        return gnmi.GetResponse(notification=notifications)

    def _updates(self, place: Path, node: Any, encoding: int) -> list[Any]:
        if encoding == gnmi.PROTO:
            return [
                gnmi.Update(path=self._shown(leaf_path), val=_scalar(leaf))
                for leaf_path, leaf in leaves(node, place)
            ]
        return [
            gnmi.Update(path=self._shown(place), val=self._value(node, encoding, place))
        ]

    def _check_encoding(self, encoding: int) -> None:
        if encoding not in _ENCODINGS:
            raise CallError(
                Status.UNIMPLEMENTED, "the encodings are JSON, JSON_IETF and PROTO"
            )

    # Set

    def _set(self, call: Call, message: bytes, now_ns: int) -> Any:
        request = gnmi.SetRequest.FromString(message)
        try:
            commands, then = self._asked(request)
        except TreeError as error:
            raise CallError(Status.INVALID_ARGUMENT, str(error)) from None
        done = (
            (gnmi.UpdateResult.DELETE, request.delete),
            (gnmi.UpdateResult.REPLACE, [update.path for update in request.replace]),
            (gnmi.UpdateResult.UPDATE, [update.path for update in request.update]),
        )
        results = [
            gnmi.UpdateResult(
                path=write_path(read_path(request.prefix, path)), op=operation
            )
            for operation, paths in done
            for path in paths
        ]
        answer = gnmi.SetResponse(response=results, timestamp=time.time_ns())
        tickets = [self._device.submit(now_ns, command) for command in commands] or [
            Ticket(done=True)
        ]
        self._settings.append(_Setting(call, tickets[0], then, answer))

    def _finish_settings(self) -> None:
        waiting = []
        for setting in self._settings:
            if not setting.ticket.done:
                waiting.append(setting)
                continue
            error = setting.ticket.error
            if isinstance(error, DeviceError):
                self._calls.finish(
                    setting.call, _FAULTS[error.fault], self._refusal(error)
                )
                continue
            setting.then()
            self._calls.send(setting.call, setting.answer.SerializeToString())
            self._calls.finish(setting.call)
        self._settings = waiting

    # Subscribe

    def _subscribe(self, call: Call, now_ns: int) -> None:
        known = next(
            (
                subscription
                for subscription in self._subscriptions
                if subscription.call is call
            ),
            None,
        )
        while call.messages:
            request = gnmi.SubscribeRequest.FromString(call.messages.popleft())
            kind = request.WhichOneof("request")
            if kind == "subscribe" and known is None:
                known = self._begin(call, request.subscribe, now_ns)
                self._subscriptions.append(known)
                self._tell(known, now_ns, everything=not known.updates_only)
                self._synchronised(call)
            elif (
                kind == "poll"
                and known is not None
                and known.mode == gnmi.SubscriptionList.POLL
            ):
                self._tell(known, now_ns, everything=True)
                self._synchronised(call)
            else:
                raise CallError(
                    Status.INVALID_ARGUMENT,
                    "subscribe once, and poll what was subscribed so",
                )
        once = known is not None and known.mode == gnmi.SubscriptionList.ONCE
        if once or (
            call.ended and (known is None or known.mode == gnmi.SubscriptionList.POLL)
        ):
            self._calls.finish(call)

    def _synchronised(self, call: Call) -> None:
        self._calls.send(
            call, gnmi.SubscribeResponse(sync_response=True).SerializeToString()
        )

    def _begin(self, call: Call, request: Any, now_ns: int) -> _Subscription:
        self._check_encoding(request.encoding)
        if request.use_aliases or not request.subscription:
            raise CallError(
                Status.INVALID_ARGUMENT, "a subscription has paths and no aliases"
            )
        paths = [
            self._path(request.prefix, subscription.path)
            for subscription in request.subscription
        ]
        intervals = [
            max(subscription.sample_interval, _LEAST_INTERVAL_NS)
            for subscription in request.subscription
            if subscription.mode == gnmi.SAMPLE
        ]
        return _Subscription(
            call,
            paths,
            request.mode,
            request.encoding,
            request.updates_only,
            min(intervals, default=0),
            look_ns=now_ns + _LOOK_NS,
            sample_ns=now_ns + min(intervals, default=0),
        )

    def _stream(self, subscription: _Subscription, now_ns: int) -> None:
        if (
            subscription.mode != gnmi.SubscriptionList.STREAM
            or now_ns < subscription.look_ns
        ):
            return
        subscription.look_ns = now_ns + _LOOK_NS
        if self._calls.waiting_bytes > MAX_WAITING_BYTES:
            return
        sample = subscription.interval_ns > 0 and now_ns >= subscription.sample_ns
        if sample:
            subscription.sample_ns = now_ns + subscription.interval_ns
        self._tell(subscription, now_ns, everything=sample)

    def _tell(self, subscription: _Subscription, now_ns: int, everything: bool) -> None:
        """Send a subscriber everything, or what has changed since the last notification."""
        root = self._read(subscription.paths, now_ns)
        now = {
            leaf_path: leaf
            for path in subscription.paths
            for place, node in find(root, path)
            for leaf_path, leaf in leaves(node, place)
        }
        first = not subscription.last_sent and not everything
        before, subscription.last_sent = subscription.last_sent, now
        if first and subscription.updates_only:
            subscription.updates_only = False
            return
        fresh = {
            leaf_path: leaf
            for leaf_path, leaf in now.items()
            if everything or before.get(leaf_path) != leaf
        }
        gone = [leaf_path for leaf_path in before if leaf_path not in now]
        if not fresh and not gone:
            return
        note = gnmi.Notification(
            timestamp=time.time_ns(),
            update=[
                update
                for leaf_path, leaf in fresh.items()
                for update in self._updates(leaf_path, leaf, subscription.encoding)
            ],
            delete=[self._shown(leaf_path) for leaf_path in gone],
        )
        self._calls.send(
            subscription.call, gnmi.SubscribeResponse(update=note).SerializeToString()
        )
