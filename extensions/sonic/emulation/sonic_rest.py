"""REST of a SONiC optical circuit switch, the device's side: RESTCONF (RFC 8040) in JSON, ``/restconf``.

    GET, HEAD, OPTIONS   /restconf/data/MODULE:MODULE[/CONTAINER[/LIST=KEY,…[/LEAF]]]
    PUT, PATCH, POST, DELETE     cross-connects: their container and single ones
    PUT, PATCH                   ports: their container, single ones, their state and label
    POST                 /restconf/operations/sonic-ocs:bulk-update      delete and add in one

What is in the tree: `sonic_tree`. Sources, as read on 2026-11-26: targets, bodies and statuses of reading,
adding and deleting, and the whole of ``bulk-update``, from the examples of the platform ocs-molex (its
README, and translib/transformer/xfmr_ocs_bulk_update.go of sonic-molex/sonic-mgmt-common at abe2bb2); that
SONiC's management framework serves whatever `sonic-ocs.yang` says at ``/restconf/data``, from the
developers' guide, revision 0.2 of 2026-08-19 (sonic-ocs/SONiC, doc/ocs/sonic-ocs-developer-guide.md). The
design document has no examples of REST, and ``bulk-update`` is in that branch alone.

A write is checked and carried out as a whole, when the device has nothing else to do, and answered then; its
light comes later. What stands and is not changed is not touched. On the product the answer comes when
CONFIG_DB has it, perhaps before the device does.

Unverified, and chosen here: codes and texts of errors (RFC 8040's; 409 ``in-use`` for a busy port), that a
container without entries is ``{}``, plain HTTP, that a login is basic authentication of the switch's users
(none are asked for where it has none), and that there are no entity tags. Query parameters are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from ringlight.extensions.gnmi.yang_tree import (
    Path,
    Step,
    TreeError,
    bare,
    bare_entry,
    find,
)
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
    RestconfError,
    error_body,
    from_device,
)
from ringlight.extensions.sonic.emulation.sonic_tree import (
    CONFIG,
    KEYS,
    LOSS_KEYS,
    LOSS_LIST,
    MODULES,
    PORTS,
    ROOT,
    WIRE_LIST,
    WIRES,
    InUse,
    SonicTreeChange,
    TooBig,
    as_json,
    by_name,
    tree,
)
from ringlight.fabric.text import parse_json
from ringlight.testbed.emulation.optical.session import ManagementProtocol, Switch

DATA, OPERATIONS = "/restconf/data", "/restconf/operations"
BULK = f"{CONFIG}:bulk-update"
_READ = "GET, HEAD, OPTIONS"
_SEGMENT = re.compile(
    r"(?:([A-Za-z_][\w.-]*):)?([A-Za-z_][\w.-]*)(?:=(.*))?", re.DOTALL
)


def read_path(text: str) -> Path:
    """Return the path of a resource below ``/restconf/data``. Raises RestconfError."""
    steps: list[Step] = []
    for part in (part for part in text.split("/") if part):
        match = _SEGMENT.fullmatch(part)
        if match is None or len(steps) > 4:
            raise RestconfError(404, "unknown-element", f"there is no {text[:100]}")
        module, name, key = match.groups()
        if (not steps and (module or name) != name) or module not in (None, *MODULES):
            raise RestconfError(404, "unknown-element", f"there is no {text[:100]}")
        leaves = LOSS_KEYS if name == LOSS_LIST else KEYS.get(name, KEYS[WIRE_LIST])
        keys: tuple[tuple[str, str], ...] = ()
        if key is not None:
            values = [unquote(value) for value in key.split(",")]
            if len(values) != leaves.count(",") + 1 or "*" in values:
                raise RestconfError(
                    400, "invalid-value", f"{name}: its key is {leaves}"
                )
            keys = tuple(sorted(zip(leaves.split(","), values, strict=True)))
        steps.append(Step(name, keys))
    return tuple(steps)


def _allowed(path: Path) -> str:
    """Methods that a resource has."""
    inside = len(path) - len(WIRES)
    if path[:2] == WIRES and (inside == 0 or (inside == 1 and path[-1].keys)):
        return f"{_READ}, PUT, PATCH, DELETE" + (", POST" if inside == 0 else "")
    if path == ROOT[CONFIG]:
        return f"{_READ}, PATCH"
    if path[:2] == PORTS and (inside == 0 or path[2].keys):
        return f"{_READ}, PATCH" if inside == 0 else f"{_READ}, PUT, PATCH"
    return _READ


def _json(request: Request) -> dict[str, Any]:
    """The object of a body. Raises RestconfError."""
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind not in (JSON, "application/json"):
        raise RestconfError(415, "invalid-value", f"a body is {JSON}, not {kind[:60]}")
    try:
        document = parse_json(request.body)
    except (ValueError, RecursionError):
        raise RestconfError(400, "malformed-message", "the body is not JSON") from None
    if not isinstance(document, dict):
        raise RestconfError(400, "malformed-message", "the body is not an object")
    return document


def _node(body: Mapping[str, Any], name: str) -> Any:
    """The node of that name, alone in a body. Raises RestconfError."""
    if list(map(bare, body)) != [name]:
        raise RestconfError(400, "invalid-value", f"the body is to be {CONFIG}:{name}")
    return next(iter(body.values()))


class SonicRestSession(HttpSession):
    """One client's connection."""

    def __init__(self, switch: Switch) -> None:
        super().__init__()
        self._switch, self._device = switch, switch.device

    def _answer(self, request: Request, now_ns: int) -> Answer:
        login = basic_login(request)
        if self._switch.users and (login is None or not self._switch.admits(*login)):
            raise RestconfError(401, "access-denied", "user and password are wanted")
        if self._device.wavelengths:
            raise RestconfError(
                501, "operation-not-supported", "the model has no wavelengths"
            )
        if request.url.query:
            raise RestconfError(
                400, "invalid-value", "query parameters are not supported"
            )
        place = request.url.path
        if place.startswith(f"{OPERATIONS}/"):
            return (
                yield from self._operate(
                    request, place.removeprefix(f"{OPERATIONS}/"), now_ns
                )
            )
        if not place.startswith(f"{DATA}/"):
            raise RestconfError(404, "unknown-element", f"there is no {place[:100]}")
        path, method = read_path(place.removeprefix(DATA)), request.method
        allowed = _allowed(path)
        if method == "OPTIONS":
            return Response(200, b"", {"allow": allowed, "accept-patch": JSON})
        if method not in allowed.split(", "):
            raise RestconfError(
                405,
                "operation-not-supported",
                f"{method} is not possible here: {allowed}",
            )
        if method in ("GET", "HEAD"):
            return self._get(path, now_ns)
        # Nothing can change between the check and the write: the device has nothing else to do.
        while self._device.next_ns is not None:
            now_ns = yield None
        change = SonicTreeChange(self._device)
        status = self._ask_for(change, request, path)
        yield from self._carry_out(change, now_ns)
        return Response(status)

    def _get(self, path: Path, now_ns: int) -> Response:
        try:
            matches = list(find(tree(self._device, now_ns, path), path))
        except TooBig as error:
            raise RestconfError(400, "too-big", str(error)) from None
        listed = path[-1].name.endswith("_LIST")
        if not matches and not (listed and not path[-1].keys):
            raise RestconfError(404, "invalid-value", "Resource not found")
        nodes = [as_json(node) for _, node in matches]
        value: Any = nodes if listed else nodes[0]
        if isinstance(value, dict) and not any(value.values()):
            body: dict[str, Any] = {}
        else:
            body = {f"{path[0].name}:{path[-1].name}": value}
        return Response(
            200,
            json.dumps(body, separators=(",", ":")).encode(),
            {"content-type": JSON},
        )

    def _ask_for(self, change: SonicTreeChange, request: Request, path: Path) -> int:
        """Puts what a request asks for into the change; the status of its success. Raises RestconfError."""
        method, there = request.method, change.exists(path)
        gone = RestconfError(404, "invalid-value", "Resource not found")
        try:
            if method == "DELETE":
                if not there:
                    raise gone
                change.delete(path)
                return 204
            body = _json(request)
            if method == "POST":
                value = _node(body, WIRE_LIST)
                for row in value if isinstance(value, list) else []:
                    name = bare_entry(row).get("cross_connect_id")
                    if name in change.planned:
                        raise RestconfError(
                            409, "data-exists", f"{name} is there already"
                        )
                change.update(path, {WIRE_LIST: value})
                return 201
            if method == "PATCH" and not there and path[-1].keys:
                raise gone
            value = _node(body, path[-1].name)
            if path[-1].keys:
                if not isinstance(value, list) or len(value) != 1:
                    raise RestconfError(400, "invalid-value", "one entry is wanted")
                value = value[0]
            if method == "PUT" and path[:2] == WIRES and there:
                change.delete(path)
            change.update(path, value)
        except TreeError as error:
            raise RestconfError(400, "invalid-value", str(error)) from None
        return 204 if there or method == "PATCH" else 201

    def _carry_out(self, change: SonicTreeChange, now_ns: int) -> Answer:
        """Raises RestconfError if the change is impossible, or the device refuses it."""
        try:
            commands = change.commands()
        except InUse as error:
            raise RestconfError(409, "in-use", str(error)) from None
        except TreeError as error:
            raise RestconfError(400, "invalid-value", str(error)) from None
        for command in commands:
            ticket = self._device.submit(now_ns, command)
            while not ticket.done:
                yield None
            if ticket.error is not None:
                refusal = from_device(ticket.error)
                raise RestconfError(
                    refusal.status,
                    refusal.tag,
                    by_name(str(refusal), self._device.size),
                )
        return Response(204)

    def _operate(self, request: Request, name: str, now_ns: int) -> Answer:
        if name != BULK:
            raise RestconfError(
                404, "unknown-element", f"there is no operation {name[:60]}"
            )
        if request.method == "OPTIONS":
            return Response(200, b"", {"allow": "OPTIONS, POST"})
        if request.method != "POST":
            raise RestconfError(405, "operation-not-supported", "POST is wanted")
        arguments = _node(_json(request), "input")
        if not isinstance(arguments, dict) or not arguments.keys() <= {"delete", "add"}:
            raise RestconfError(400, "invalid-value", "input has delete and add")
        delete, add = arguments.get("delete", []), arguments.get("add", [])
        if not isinstance(delete, list) or not isinstance(add, list):
            raise RestconfError(400, "invalid-value", "delete and add are lists")
        while self._device.next_ns is not None:
            now_ns = yield None
        change = SonicTreeChange(self._device)
        gone = [
            key
            for key in delete
            if isinstance(key, str) and change.planned.pop(key, None) is not None
        ]
        try:
            change.update(WIRES, {WIRE_LIST: add})
        except TreeError as error:
            raise RestconfError(400, "invalid-value", str(error)) from None
        yield from self._carry_out(change, now_ns)
        output = {"deleted_count": len(gone), "added_count": len(add)}
        body = json.dumps({f"{CONFIG}:output": output}, separators=(",", ":")).encode()
        return Response(200, body, {"content-type": JSON})

    def _error(self, error: HttpError, request: Request | None) -> Response:
        headers = {"content-type": JSON}
        if error.status == 401:
            headers["www-authenticate"] = 'Basic realm="sonic"'
        return Response(error.status, error_body(error), headers)


PROTOCOL = ManagementProtocol(
    SonicRestSession,
    8082,
    "curl {option}http://{address}/restconf/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT",
)
