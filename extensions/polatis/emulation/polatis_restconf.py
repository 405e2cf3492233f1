"""RESTCONF (RFC 8040) of Polatis 6000/7000 switches, the device's side: ``/api``, JSON or XML.

Nodes, of the vendor's models ``optical-switch`` and ``polatis-switch``:

    /api/data/optical-switch:product-information             read only
    /api/data/optical-switch:cross-connects[/pair=N[/egress]]
    /api/data/optical-switch:port-config[/port=N[/status|label]]     label can be written
    /api/data/optical-switch:opm-power[/port=N[/power]]      read only, dBm
    /api/data/polatis-switch:system-alarms                   read only
    /api/data/polatis-switch:system-config                   startup-mode: MODE_VOLATILE, MODE_PRESERVE
    POST /api/operations/optical-switch:port-set-state       port-enab, port-disab

GET, HEAD, OPTIONS, PUT, PATCH (merge), POST and DELETE mean what RFC 8040 says: 201 for what was created,
204 for what was changed or removed, 404 for what is not there, 409 for what is in the way; errors as
``ietf-restconf:errors``. Every resource has an entity tag; If-Match and If-None-Match are heeded on reading
and writing. A body is what its content type says, an answer what Accept asks for; JSON by default. A node
is found with its module's name before it or, below the top, without; list and leaf are found as ``pair``
and, as before revision 2017-08-04 of the model, ``pairs``.

A write is checked and carried out as a whole, when the device has nothing else to do, and answered then;
its light comes later. What stands and is not changed is not touched. A PUT or PATCH may move a pair, as on
the product, where a merge moves it silently. The product's model lets two pairs have one egress; no device
could do that, so here it is a conflict.

Unverified, and chosen here: the codes of errors, that a switch without pairs has an empty container (200),
and that a login is basic authentication of the users of the switch (none are asked for where it has none).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape

from ringlight.extensions.http.http_session import (
    Answer,
    HttpError,
    HttpSession,
    Request,
    Response,
    basic_login,
)
from ringlight.extensions.http.restconf_errors import (
    JSON,
    RESTCONF,
    RestconfError,
    error_body,
    from_device,
    told_error,
)
from ringlight.extensions.polatis.emulation.xml_body import (
    XmlError,
    local_name,
    namespace,
    parse_xml,
)
from ringlight.fabric.text import parse_json
from ringlight.testbed.emulation.optical.commands import (
    Command,
    Recovery,
    Rewire,
    SetAdmin,
    SetLabel,
    SetRecovery,
    Wire,
)
from ringlight.testbed.emulation.optical.monitors import alarms_of, power_dbm
from ringlight.testbed.emulation.optical.session import (
    VERSION,
    ManagementProtocol,
    Switch,
)

OPTICAL, POLATIS = "optical-switch", "polatis-switch"
NAMESPACES = {
    OPTICAL: "http://www.polatis.com/yang/optical-switch",
    POLATIS: "http://www.polatis.com/yang/polatis-switch",
    RESTCONF: "urn:ietf:params:xml:ns:yang:ietf-restconf",
}
XML = "application/yang-data+xml"
_KINDS = {
    JSON: JSON,
    "application/json": JSON,
    XML: XML,
    "application/xml": XML,
    "text/xml": XML,
}
#: Names of lists and of leaf-lists: in XML one entry looks like none.
_LISTS = ("pair", "port", "alarm", "port-enab", "port-disab")
_SEGMENT = re.compile(r"(?:([A-Za-z_][\w.-]*):)?([A-Za-z_][\w.-]*)(?:=([^=]*))?")


@dataclass(frozen=True)
class _Target:
    """A resource: its top-level node; its list's name, key and leaf where it is below."""

    module: str
    top: str
    entries: str = ""
    key: int | None = None
    leaf: str = ""

    @property
    def name(self) -> str:
        return self.leaf or self.entries or self.top


#: By top-level node: its module, its list, the list's key, and the leaves of an entry.
_TREE: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "product-information": (OPTICAL, "", "", ()),
    "cross-connects": (OPTICAL, "pair", "ingress", ("ingress", "egress")),
    "port-config": (OPTICAL, "port", "port-id", ("port-id", "status", "label")),
    "opm-power": (OPTICAL, "port", "port-id", ("port-id", "power")),
    "system-alarms": (POLATIS, "alarm", "", ()),
    "system-config": (POLATIS, "", "", ()),
}
_ALLOWED = {
    "cross-connects": "GET, HEAD, OPTIONS, PUT, PATCH, POST, DELETE",
    "system-config": "GET, HEAD, OPTIONS, PUT, PATCH",
}
#: What a start does to light; the emulated switch can do a third thing, which is told as the second.
_STARTUP = {"MODE_VOLATILE": Recovery.REMOVE, "MODE_PRESERVE": Recovery.RESTORE}
_READ_ONLY = "GET, HEAD, OPTIONS"


def _bad(message: str) -> RestconfError:
    return RestconfError(400, "invalid-value", message)


def _find(path: str) -> _Target | None:
    """The resource of a path below ``/api/data``; None for the whole. Raises RestconfError."""
    segments = [_SEGMENT.fullmatch(unquote(part)) for part in path.split("/") if part]
    if not segments:
        return None
    missing = RestconfError(404, "unknown-element", f"there is no {path[:100]}")
    parts = [match.groups() for match in segments if match is not None]
    module, top, key = parts[0]
    if (
        len(parts) != len(segments)
        or top not in _TREE
        or key is not None
        or len(parts) > 3
    ):
        raise missing
    owner, entries, _, leaves = _TREE[top]
    if module not in (None, owner) or any(
        part[0] not in (None, owner) for part in parts
    ):
        raise missing
    if len(parts) == 1:
        return _Target(owner, top)
    name, key = parts[1][1:]
    if not entries or name not in (entries, f"{entries}s"):
        raise missing
    if key is None:
        if len(parts) == 3:
            raise missing
        return _Target(owner, top, entries)
    if not leaves or re.fullmatch(r"\d{1,5}", key) is None:
        raise RestconfError(
            404, "invalid-value", f"{name}={key[:20]} is no key of {top}"
        )
    leaf, value = parts[2][1:] if len(parts) == 3 else ("", None)
    if value is not None or (leaf and leaf not in leaves):
        raise missing
    return _Target(owner, top, entries, int(key), leaf)


def _plain(element: Element) -> Any:
    """An element as JSON would have it, all leaves as text."""
    if not len(element):
        return (element.text or "").strip()
    content: dict[str, Any] = {}
    for child in element:
        name = local_name(child)
        name = "pair" if name == "pairs" else name
        if name in _LISTS:
            content.setdefault(name, []).append(_plain(child))
        else:
            content[name] = _plain(child)
    return content


def _to_xml(name: str, value: object, namespace: str = "") -> str:
    space = f' xmlns="{namespace}"' if namespace else ""
    if isinstance(value, dict):
        inner = "".join(
            "".join(
                _to_xml(key, child)
                for child in (item if isinstance(item, list) else [item])
            )
            for key, item in value.items()
        )
    else:
        inner = escape(str(value))
    return f"<{name}{space}>{inner}</{name}>"


def _number(value: object, text: bool, what: str) -> int:
    """A port of a body; as text only in XML. Raises RestconfError."""
    if text and isinstance(value, str) and re.fullmatch(r"\d{1,5}", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _bad(f"{what}: {str(value)[:40]!r} is not a port")
    return value


class PolatisRestconfSession(HttpSession):
    """One client's connection."""

    def __init__(self, switch: Switch) -> None:
        super().__init__()
        self._switch = switch
        self._device = switch.device
        #: The configuration of all ports and its entity tag, as of a revision of the device's ports.
        self._ports: tuple[int, dict[str, Any], str] = (-1, {}, "")

    def _answer(self, request: Request, now_ns: int) -> Answer:
        login = basic_login(request)
        if self._switch.users and (login is None or not self._switch.admits(*login)):
            raise RestconfError(401, "access-denied", "user and password are wanted")
        kind = self._accepted(request)
        path = request.url.path
        if path.startswith("/api/operations/"):
            return (
                yield from self._operate(
                    request, path.removeprefix("/api/operations/"), now_ns
                )
            )
        if path.rstrip("/") != "/api/data" and not path.startswith("/api/data/"):
            raise RestconfError(404, "unknown-element", f"there is no {path[:100]}")
        target = _find(path.removeprefix("/api/data"))
        self._check_query(request, target)
        method = request.method
        allowed = self._allowed(target)
        if method == "OPTIONS":
            return Response(
                200, b"", {"allow": allowed, "accept-patch": f"{JSON}, {XML}"}
            )
        if method not in allowed.split(", "):
            raise RestconfError(
                405,
                "operation-not-supported",
                f"{method} is not possible here: {allowed}",
            )
        if method in ("GET", "HEAD"):
            return self._get(request, target, kind, now_ns)
        assert target is not None
        # Nothing can change between the check and the write: the device has nothing else to do.
        while self._device.next_ns is not None:
            now_ns = yield None
        self._check_conditions(request, target, now_ns)
        if target.top == "port-config":
            assert target.key is not None
            command, status = self._labelled(request, target), 204
        elif target.top == "system-config":
            command, status = self._startup(request, target), 204
        else:
            pairs, status = self._change(request, target)
            command = Rewire(tuple(Wire(*pair) for pair in pairs.items()), only=True)
        location = {}
        if method == "POST":
            created = pairs.keys() - self._pairs().keys()
            location = {
                "location": f"/api/data/{OPTICAL}:cross-connects/pair={min(created)}"
            }
        yield from self._carry_out(command, now_ns)
        value = self._value(target, now_ns)
        tag = {"etag": self._tag(value)} if value is not None else {}
        return Response(status, b"", location | tag)

    def _carry_out(self, command: Command, now_ns: int) -> Answer:
        """Raises RestconfError if the device refuses it."""
        ticket = self._device.submit(now_ns, command)
        while not ticket.done:
            yield None
        if ticket.error is not None:
            raise from_device(ticket.error)
        return Response(204)

    # What stands

    def _pairs(self) -> dict[int, int]:
        return {wire.ingress: wire.egress for wire in self._device.cross_connects()}

    def _value(self, target: _Target | None, now_ns: int) -> Any:
        """A resource as JSON has it; None where it is not there."""
        if target is None:
            return {
                f"{module}:{top}": self._container(top, now_ns)
                for top, (module, *_) in _TREE.items()
            }
        if target.key is None:
            container = self._container(target.top, now_ns)
            return container.get(target.entries, []) if target.entries else container
        entry = self._entry(target, now_ns)
        return entry if entry is None or not target.leaf else entry.get(target.leaf)

    def _entry(self, target: _Target, now_ns: int) -> dict[str, Any] | None:
        key = _TREE[target.top][2]
        rows = self._container(target.top, now_ns).get(target.entries, [])
        return next((row for row in rows if row[key] == target.key), None)

    def _container(self, top: str, now_ns: int) -> dict[str, Any]:
        device = self._device
        ports = range(1, 2 * device.size + 1)
        if top == "product-information":
            return {
                "manufacturer": "Polatis",
                "serial-number": self._switch.name,
                "model-name": self._switch.model,
                "software-version": VERSION,
            }
        if top == "cross-connects":
            pairs = self._pairs()
            return (
                {"pair": [{"ingress": a, "egress": b} for a, b in pairs.items()]}
                if pairs
                else {}
            )
        if top == "port-config":
            if self._ports[0] != device.ports_revision:
                document = {"port": [self._port(port) for port in ports]}
                self._ports = device.ports_revision, document, _tag(document)
            return self._ports[1]
        if top == "opm-power":
            powers = [(port, power_dbm(device, port, now_ns)) for port in ports]
            return {
                "port": [
                    {"port-id": port, "power": f"{power:.2f}"} for port, power in powers
                ]
            }
        if top == "system-config":
            volatile = device.recovery is Recovery.REMOVE
            return {"startup-mode": "MODE_VOLATILE" if volatile else "MODE_PRESERVE"}
        alarms = [
            {
                "alarm-type": alarm.kind,
                "alarm-message": f"port {alarm.port}: {alarm.reason}",
            }
            for alarm in alarms_of(device, now_ns)
        ]
        return {"alarm": alarms} if alarms else {}

    def _port(self, port: int) -> dict[str, Any]:
        label = self._device.label(port)
        row: dict[str, Any] = {"port-id": port, "status": self._device.admin(port).name}
        return {**row, "label": label} if label else row

    # Reading

    def _get(
        self, request: Request, target: _Target | None, kind: str, now_ns: int
    ) -> Response:
        value = self._value(target, now_ns)
        if value is None or (target is not None and target.entries and value == []):
            raise RestconfError(404, "invalid-value", "there is no such instance")
        tag, given = self._tag(value), request.headers
        headers = {"etag": tag, "cache-control": "no-cache", "vary": "accept"}
        if "if-match" in given and not _matches(given["if-match"], tag, True):
            raise RestconfError(412, "operation-failed", "If-Match: it has another tag")
        if _matches(given.get("if-none-match", ""), tag, True):
            return Response(304, b"", headers)
        return Response(
            200, self._written(target, value, kind), {**headers, "content-type": kind}
        )

    def _written(self, target: _Target | None, value: Any, kind: str) -> bytes:
        module, name = (
            (RESTCONF, "data") if target is None else (target.module, target.name)
        )
        entry = target is not None and bool(target.entries) and not target.leaf
        if kind == JSON:
            content = [value] if entry and not isinstance(value, list) else value
            return json.dumps(
                {f"{module}:{name}": content}, separators=(",", ":")
            ).encode()
        if isinstance(value, list):
            raise _bad(f"{name}: XML has one root; name one entry, or ask for JSON")
        if target is None:
            parts = [
                _to_xml(key.partition(":")[2], child, NAMESPACES[key.partition(":")[0]])
                for key, child in value.items()
            ]
            return (
                f'<data xmlns="{NAMESPACES[RESTCONF]}">{"".join(parts)}</data>'.encode()
            )
        return _to_xml(name, value, NAMESPACES[module]).encode()

    def _tag(self, value: object) -> str:
        """The entity tag of a resource: the same for the same value."""
        return self._ports[2] if value is self._ports[1] else _tag(value)

    def _accepted(self, request: Request) -> str:
        """The media type to answer with. Raises RestconfError."""
        media_types = [
            part.partition(";")[0].strip().lower()
            for part in request.headers.get("accept", "").split(",")
        ]
        if media_types == [""]:
            return JSON
        for media_type in media_types:
            if media_type in _KINDS:
                return _KINDS[media_type]
            if media_type in ("*/*", "application/*"):
                return JSON
        raise RestconfError(406, "invalid-value", f"an answer is {JSON} or {XML}")

    def _check_query(self, request: Request, target: _Target | None) -> None:
        for key, values in parse_qs(request.url.query, keep_blank_values=True).items():
            whole = {"content": {"all"}, "depth": {"unbounded"}}.get(key, set())
            if (
                key == "content"
                and target is not None
                and target.top == "cross-connects"
            ):
                whole = {"all", "config"}
            if not whole.issuperset(values):
                raise _bad(
                    f"the parameter {key[:40]}={values[0][:40]} is not supported"
                )

    # Writing

    def _allowed(self, target: _Target | None) -> str:
        if target is None:
            return _READ_ONLY
        if (
            target.top == "port-config"
            and target.key is not None
            and target.leaf in ("", "label")
        ):
            return (
                f"{_READ_ONLY}, PUT, PATCH" if target.leaf else f"{_READ_ONLY}, PATCH"
            )
        allowed = _ALLOWED.get(target.top, _READ_ONLY)
        if target.key is not None:
            allowed = allowed.replace(", POST", "")
            if target.leaf:
                allowed = (
                    allowed.replace(", DELETE", "")
                    if target.leaf == "egress"
                    else _READ_ONLY
                )
        elif target.entries and allowed != _READ_ONLY:
            allowed = _READ_ONLY
        return allowed

    def _check_conditions(self, request: Request, target: _Target, now_ns: int) -> None:
        value = self._value(target, now_ns)
        if_match, unwanted = (
            request.headers.get(f"if-{name}match") for name in ("", "none-")
        )
        tag = "" if value is None else self._tag(value)
        # A container without anything in it has a tag to be compared with, yet is not there.
        if if_match is not None and not _matches(if_match, tag, bool(value)):
            raise RestconfError(
                412, "operation-failed", "If-Match: it is not there, or has another tag"
            )
        if unwanted is not None and _matches(unwanted, tag, bool(value)):
            raise RestconfError(412, "operation-failed", "If-None-Match: it is there")

    def _node(self, request: Request, module: str, name: str) -> tuple[Any, bool]:
        """The node of that name in the body, and whether its leaves are text. Raises RestconfError."""
        given = (
            request.headers.get("content-type", "").partition(";")[0].strip().lower()
        )
        if not given:
            given = XML if request.body.lstrip()[:1] == b"<" else JSON
        kind = _KINDS.get(given)
        if kind is None:
            raise RestconfError(
                415, "invalid-value", f"a body is {JSON} or {XML}, not {given[:60]}"
            )
        if kind == JSON:
            try:
                document = parse_json(request.body)
            except (ValueError, RecursionError):
                raise RestconfError(
                    400, "malformed-message", "the body is not JSON"
                ) from None
            if isinstance(document, dict) and len(document) == 1:
                ((key, value),) = document.items()
                names = (name, f"{name}s") if name == "pair" else (name,)
                if key in names or key in [
                    f"{module}:{candidate}" for candidate in names
                ]:
                    return value, False
        else:
            try:
                root = parse_xml(request.body)
            except XmlError as error:
                raise RestconfError(400, "malformed-message", str(error)) from None
            if local_name(root) in (name, f"{name}s") and namespace(root) in (
                "",
                NAMESPACES[module],
            ):
                value = _plain(root)
                # An empty element is a container without anything in it; a root is one entry of its list.
                if name in _LISTS:
                    return [value], True
                return {} if value == "" and name in (
                    "cross-connects",
                    "input",
                ) else value, True
        raise _bad(f"the body is to be {module}:{name}")

    def _change(self, request: Request, target: _Target) -> tuple[dict[int, int], int]:
        """Pairs as the request leaves them, and the status of its success. Raises RestconfError."""
        pairs, method = self._pairs(), request.method
        key = target.key
        if method == "DELETE":
            if key is None:
                if not pairs:
                    raise RestconfError(
                        404, "invalid-value", "there is nothing to delete"
                    )
                return {}, 204
            if key not in pairs:
                raise RestconfError(404, "invalid-value", f"there is no pair={key}")
            return {
                ingress: egress for ingress, egress in pairs.items() if ingress != key
            }, 204
        if key is None:
            name = "pair" if method == "POST" else "cross-connects"
            value, text = self._node(request, target.module, name)
            if method != "POST":
                value = self._inside(value)
            given = self._given(value, text)
            if method == "PUT":
                return given, 204 if pairs else 201
            if method == "POST":
                if not given:
                    raise _bad("a pair is wanted")
                for ingress in given.keys() & pairs.keys():
                    raise RestconfError(
                        409, "data-exists", f"pair={ingress} is there already"
                    )
                return pairs | given, 201
            return pairs | given, 204
        if method == "PATCH" and key not in pairs:
            raise RestconfError(404, "invalid-value", f"there is no pair={key}")
        if target.leaf:
            if key not in pairs:
                raise RestconfError(404, "invalid-value", f"there is no pair={key}")
            value, text = self._node(request, target.module, "egress")
            return pairs | {key: _number(value, text, "egress")}, 204
        value, text = self._node(request, target.module, "pair")
        given = self._given(value, text, pairs if method == "PATCH" else None)
        if list(given) != [key]:
            raise _bad(f"the body is to be pair={key} and nothing else")
        return pairs | given, 204 if key in pairs else 201

    def _inside(self, value: object) -> object:
        """The list of a container of pairs. Raises RestconfError."""
        if not isinstance(value, dict):
            raise _bad("cross-connects: a container is wanted")
        names = {key: key.removeprefix(f"{OPTICAL}:") for key in value}
        if not set(names.values()) <= {"pair", "pairs"} or len(names) > 1:
            raise RestconfError(400, "unknown-element", "cross-connects has only pair")
        return next(iter(value.values()), [])

    def _given(
        self, value: object, text: bool, known: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """The pairs of a list. ``known`` has the egress of those that tell none. Raises RestconfError."""
        if not isinstance(value, list) or not all(
            isinstance(entry, dict) for entry in value
        ):
            raise _bad("pair: a list of objects is wanted")
        given: dict[int, int] = {}
        for entry in value:
            row = {
                name.removeprefix(f"{OPTICAL}:"): item for name, item in entry.items()
            }
            if not row.keys() <= {"ingress", "egress"}:
                raise RestconfError(
                    400, "unknown-element", "a pair has ingress and egress"
                )
            ingress = _number(row.get("ingress"), text, "ingress")
            if ingress in given:
                raise _bad(f"pair={ingress} is named twice")
            if "egress" not in row and known is not None and ingress in known:
                given[ingress] = known[ingress]
            else:
                given[ingress] = _number(row.get("egress"), text, "egress")
        return given

    def _labelled(self, request: Request, target: _Target) -> Command:
        """Read the command that labels a port. Raises RestconfError."""
        assert target.key is not None
        if target.leaf:
            label, _ = self._node(request, target.module, "label")
        else:
            value, text = self._node(request, target.module, "port")
            row = value[0] if isinstance(value, list) and len(value) == 1 else None
            if not isinstance(row, dict) or row.keys() - {"port-id"} != {"label"}:
                raise _bad("of a port only its label can be written")
            if (
                "port-id" in row
                and _number(row["port-id"], text, "port-id") != target.key
            ):
                raise _bad(f"the body is to be port={target.key}")
            label = row["label"]
        if not isinstance(label, str):
            raise _bad("label: text is wanted")
        return SetLabel(target.key, label)

    def _startup(self, request: Request, target: _Target) -> Command:
        """Read the command that says what the next start does to light. Raises RestconfError."""
        value, _ = self._node(request, target.module, target.top)
        if not isinstance(value, dict) or value.keys() != {"startup-mode"}:
            raise _bad("system-config has startup-mode")
        recovery = _STARTUP.get(str(value["startup-mode"]))
        if recovery is None:
            raise _bad(f"startup-mode: one of {', '.join(_STARTUP)}")
        return SetRecovery(recovery)

    def _operate(self, request: Request, name: str, now_ns: int) -> Answer:
        if name.removeprefix(f"{OPTICAL}:") != "port-set-state":
            raise RestconfError(
                404, "unknown-element", f"there is no operation {name[:60]}"
            )
        if request.method != "POST":
            raise RestconfError(405, "operation-not-supported", "POST is wanted")
        value, text = self._node(request, OPTICAL, "input")
        if not isinstance(value, dict) or not value.keys() <= {
            "port-enab",
            "port-disab",
        }:
            raise _bad("input has port-enab and port-disab")
        commands: list[Command] = []
        for key, enabled in (("port-enab", True), ("port-disab", False)):
            ports = value.get(key, [])
            if not isinstance(ports, Sequence) or isinstance(ports, str):
                raise _bad(f"{key}: a list of ports is wanted")
            numbers = tuple(_number(port, text, key) for port in ports)
            for port in numbers:
                if not 1 <= port <= 2 * self._device.size:
                    raise _bad(f"{key}: there is no port {port}")
            if numbers:
                commands.append(SetAdmin(numbers, enabled))
        for command in commands:
            yield from self._carry_out(command, now_ns)
        return Response(204)

    def _allow_header(self, request: Request | None) -> dict[str, str]:
        """The header ``Allow`` of a 405."""
        if request is None:
            return {}
        if request.url.path.startswith("/api/operations/"):
            return {"allow": "POST"}
        return {
            "allow": self._allowed(_find(request.url.path.removeprefix("/api/data")))
        }

    def _error(self, error: HttpError, request: Request | None) -> Response:
        document = told_error(error)
        headers = {"content-type": JSON}
        if error.status == 401:
            headers["www-authenticate"] = 'Basic realm="Polatis"'
        if error.status == 405:
            headers |= self._allow_header(request)
        try:
            xml = request is not None and self._accepted(request) == XML
        except RestconfError:
            xml = False
        if xml:
            body = _to_xml("errors", {"error": document}, NAMESPACES[RESTCONF]).encode()
            return Response(error.status, body, {**headers, "content-type": XML})
        return Response(error.status, error_body(error), headers)


def _tag(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:16]}"'


def _matches(condition: str, tag: str, there: bool) -> bool:
    """Return whether an If-Match or If-None-Match names this entity tag. ``there``: whether the entity
    exists, which ``*`` matches."""
    named = [part.strip().removeprefix("W/") for part in condition.split(",")]
    return there if "*" in named else bool(tag) and tag in named


PROTOCOL = ManagementProtocol(
    PolatisRestconfSession,
    8008,
    "curl {option}http://{address}/api/data/optical-switch:cross-connects",
)
