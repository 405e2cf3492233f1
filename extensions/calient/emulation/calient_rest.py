"""REST interface of Calient S-series switches, the device's side: JSON over HTTP, base ``/rest``.

    GET    crossconnects/?id=list                     every circuit; halves with powers, loss and states
    GET    crossconnects/?id=detail&conn=1.1.1>1.2.1  one of them, as a list
    POST   crossconnects/?id=add      {"in", "out", "group", "conn", "dir": "uni"|"bi", "name", "nolight"}
    POST   crossconnects/?id=badd     a list of those; answers a list, each with its own status
    POST   crossconnects/?id=bdel     [{"conn": "1.1.1>1.2.1"}], likewise
    DELETE crossconnects/?id=delete&conn=…            (or ?conn=… alone)
    POST   crossconnects/?id=activate|deactivate&conn=…      (or {"conn": …} as body)
    POST   crossconnects/?id=deleteall
    GET    ports/?id=summary          port, conn, connid, power, inalias, outalias
    GET    ports/?id=detail&port=1.1.1         the same of one port, as a list, with incircuit and outcircuit
    POST   ports/?id=config           {"port", "inalias", "outalias", "inas": "IS"|"OOS", "outas"}
    GET    info/?id=restversion|softwareversion
    GET    node/?id=summary&detail=SYSCFG|SOFTWARE|HARDWARE

The body of a POST of one object may be a form, which may have ``id``, too: ``id=add&in=1.1.1&out=1.1.2``.

The first request needs HTTP basic authentication and is given a session cookie, with which later ones do
without, until it has not been used for `COOKIE_S`. A switch without users asks nobody.

As on the product, a refused circuit is an answer with status 200 that says ``{"response": {"status":
"0"}}``; a bulk request may do a part. A busy port refuses: conflicts are the client's to resolve. A write
is answered when the device has carried it out; its light comes later, and the states say when. Without
``nolight`` a circuit whose ingress is dark is reported with OC FAIL.

Unverified, and chosen here: the status of success (``1``) and the text beside it, ``detail`` of a circuit
or port that is not there (status 0), what a port's ``detail`` has besides ``incircuit`` and ``outcircuit``
(text, empty without a circuit), powers as text in dBm (``NONE`` without light), a port's ``power`` as
``in,out``, the keys of ``info`` and ``node``, and the body of ``ports/?id=config``. ``deadreckon`` is taken
as ``nolight``; ``band`` is ignored.
"""

from __future__ import annotations

import hmac
import json
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, parse_qsl

from ringlight.extensions.calient.emulation.calient_circuits import (
    GROUP,
    INVALID,
    SOFTWARE,
    CalientCircuit,
    CalientCircuits,
    CircuitError,
)
from ringlight.extensions.http.http_session import (
    Answer,
    HttpError,
    HttpSession,
    Request,
    Response,
    basic_login,
)
from ringlight.fabric.text import parse_json
from ringlight.testbed.emulation.optical.commands import (
    NS,
    Admin,
    Command,
    SetAdmin,
    SetLabel,
    Wire,
)
from ringlight.testbed.emulation.optical.session import ManagementProtocol, Switch

REST_VERSION = "1.0"
COOKIE = "SESSIONID"
#: A cookie that was not used for this long is forgotten, seconds.
COOKIE_S = 1800
MAX_COOKIES = 256
MAX_BULK = 4096
MAX_FORM_FIELDS = 32
_DONE, _REFUSED = "1", "0"
#: Yields while the device is busy with it; for each item of a request whether it was done.
_Done = Generator[None, int, list[bool]]


class Cookies:
    """The sessions of a switch that are logged in, and when each was last heard of."""

    def __init__(self) -> None:
        self._heard: OrderedDict[str, int] = OrderedDict()
        self._made = 0

    def make(self, key: str, now_ns: int) -> str:
        """Make a cookie that cannot be guessed without the password, and return it."""
        self._made += 1
        cookie = hmac.new(key.encode(), str(self._made).encode(), "sha256").hexdigest()[
            :32
        ]
        self._heard[cookie] = now_ns
        while len(self._heard) > MAX_COOKIES:
            self._heard.popitem(last=False)
        return cookie

    def knows(self, cookie: str, now_ns: int) -> bool:
        heard = self._heard.get(cookie)
        if heard is None:
            return False
        if now_ns - heard > COOKIE_S * NS:
            del self._heard[cookie]
            return False
        self._heard[cookie] = now_ns
        self._heard.move_to_end(cookie)
        return True


def _status(done: bool, text: str = "") -> dict[str, Any]:
    return {
        "response": {
            "status": _DONE if done else _REFUSED,
            **({"description": text} if text else {}),
        }
    }


def _reply(value: object) -> Response:
    return Response(
        200, json.dumps(value).encode(), {"content-type": "application/json"}
    )


def _form(body: bytes) -> dict[str, str]:
    """Return the fields of a body that is a form; none for any other body, whatever its type is called."""
    if body.lstrip()[:1] in (b"", b"{", b"[") or b"=" not in body:
        return {}
    try:
        return dict(
            parse_qsl(
                body.decode(),
                keep_blank_values=True,
                strict_parsing=True,
                max_num_fields=MAX_FORM_FIELDS,
            )
        )
    except ValueError:
        return {}


def _text(item: Mapping[str, Any], key: str, default: str = "") -> str:
    text = item.get(key, default)
    if not isinstance(text, str):
        raise HttpError(400, f"{key}: text is wanted")
    return text


def _yes(item: Mapping[str, Any], key: str) -> bool:
    """A flag, as JSON's or as text."""
    return str(item.get(key, "")).strip().lower() in ("true", "1", "yes", "y")


class CalientRestSession(HttpSession):
    """One client's connection."""

    def __init__(self, switch: Switch) -> None:
        super().__init__()
        self._switch = switch
        self._device = switch.device
        self._circuits = CalientCircuits.of(switch)
        self._cookies = switch.shared(Cookies)

    def _answer(self, request: Request, now_ns: int) -> Answer:
        cookie = self._let_in(request, now_ns)
        response = yield from self._do(request, now_ns)
        if cookie is None:
            return response
        given = {"set-cookie": f"{COOKIE}={cookie}; Path=/; HttpOnly"}
        return Response(response.status, response.body, {**response.headers, **given})

    def _error(self, error: HttpError, request: Request | None) -> Response:
        body = json.dumps(_status(False, str(error))).encode()
        headers = {"content-type": "application/json"}
        if error.status == 401:
            headers["www-authenticate"] = 'Basic realm="Calient"'
        return Response(error.status, body, headers)

    def _let_in(self, request: Request, now_ns: int) -> str | None:
        """A new cookie, if one is due. Raises HttpError."""
        users = self._switch.users
        if not users:
            return None
        for part in request.headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == COOKIE and self._cookies.knows(value, now_ns):
                return None
        login = basic_login(request)
        if login is None or not self._switch.admits(*login):
            raise HttpError(401, "user and password are wanted")
        return self._cookies.make(users[login[0]], now_ns)

    def _do(self, request: Request, now_ns: int) -> Answer:
        query = {key: values[-1] for key, values in parse_qs(request.url.query).items()}
        path = request.url.path.strip("/").removeprefix("rest/")
        default = (
            "delete" if (path, request.method) == ("crossconnects", "DELETE") else ""
        )
        verb = query.get("id") or _form(request.body).get("id", default)
        if not request.url.path.startswith("/rest/") or path not in _METHODS:
            raise HttpError(404, f"there is no {request.url.path[:80]}")
        methods = _METHODS[path].get(verb)
        if methods is None:
            raise HttpError(400, f"{path}: id={verb[:40]} is not known")
        if request.method not in methods:
            raise HttpError(405, f"{path}?id={verb}: {' or '.join(methods)} is wanted")
        if path == "crossconnects":
            return (yield from self._crossconnects(verb, query, request, now_ns))
        if path == "ports":
            if verb == "config":
                return (yield from self._configure(request, now_ns))
            rows = self._port_summary(now_ns)
            return _reply(
                rows
                if verb == "summary"
                else self._port_detail(rows, query.get("port", ""))
            )
        if path == "info":
            return _reply(
                {"version": REST_VERSION if verb == "restversion" else SOFTWARE}
            )
        return _reply(self._node(query.get("detail", "SYSCFG")))

    # Circuits

    def _crossconnects(
        self, verb: str, query: Mapping[str, str], request: Request, now_ns: int
    ) -> Answer:
        if verb == "list":
            return _reply(
                [self._row(circuit, now_ns) for circuit in self._circuits.all()]
            )
        if verb == "detail":
            (circuit,) = self._circuits.find([query.get("conn", "")])
            return _reply(
                _status(False, INVALID)
                if circuit is None
                else [self._row(circuit, now_ns)]
            )
        if verb == "deleteall":
            done = yield from self._delete(
                self._circuits.idle(self._circuits.all()), now_ns
            )
            return _reply(_status(all(done), "" if all(done) else INVALID))
        if verb in ("add", "badd"):
            items = self._items(request, verb == "badd")
            done = yield from self._add([self._circuit(item) for item in items], now_ns)
        else:
            conns = (
                [_text(item, "conn") for item in self._items(request, True)]
                if verb == "bdel"
                else None
            )
            if conns is None:
                conns = [
                    query["conn"]
                    if "conn" in query
                    else _text(self._items(request, False)[0], "conn")
                ]
            circuits = self._circuits.find(conns)
            if verb in ("bdel", "delete"):
                done = yield from self._delete(circuits, now_ns)
            else:
                done = yield from self._switch_light(
                    circuits, verb == "activate", now_ns
                )
        statuses = [_status(success, "" if success else INVALID) for success in done]
        return _reply(statuses if verb in ("badd", "bdel") else statuses[0])

    def _items(self, request: Request, bulk: bool) -> list[Mapping[str, Any]]:
        """The objects of the body. Raises HttpError."""
        body: Any = _form(request.body)
        if not body:
            try:
                body = parse_json(request.body)
            except (ValueError, RecursionError):
                raise HttpError(400, "the body is neither JSON nor a form") from None
        items = body if bulk else [body]
        if not isinstance(items, list) or not all(
            isinstance(item, dict) for item in items
        ):
            raise HttpError(
                400, f"{'a list of objects' if bulk else 'an object'} is wanted"
            )
        if len(items) > MAX_BULK:
            raise HttpError(413, f"more than {MAX_BULK} items")
        return items

    def _circuit(self, item: Mapping[str, Any]) -> CalientCircuit | None:
        """Return the requested circuit, None if it cannot exist. Raises HttpError for values of a wrong
        type."""
        direction = _text(item, "dir", "uni")
        into, out, conn = _text(item, "in"), _text(item, "out"), _text(item, "conn")
        group, name = _text(item, "group", GROUP), _text(item, "name")
        try:
            source, destination = (self._circuits.number(text) for text in (into, out))
        except CircuitError:
            return None
        nolight = _yes(item, "nolight") or _yes(item, "deadreckon")
        made = self._circuits.new(
            source, destination, direction == "bi", group or GROUP, name, nolight
        )
        # The identifier says what ``in``, ``out`` and ``dir`` say, in either way of naming ports.
        plain = f"{source}{'-' if made.two_way else '>'}{destination}"
        return (
            made
            if direction in ("uni", "bi") and conn in ("", made.conn, plain)
            else None
        )

    def _add(self, circuits: Sequence[CalientCircuit | None], now_ns: int) -> _Done:
        valid = [circuit for circuit in circuits if circuit is not None]
        provisioned = self._circuits.provision(valid)
        held = [
            circuit for circuit, fine in zip(valid, provisioned, strict=True) if fine
        ]
        ticket = self._circuits.make(now_ns, held)
        while not ticket.done:
            yield None
        return self._which(circuits, self._circuits.done(ticket, held, on=True))

    def _delete(self, circuits: Sequence[CalientCircuit | None], now_ns: int) -> _Done:
        fine = self._circuits.idle(circuits)
        active = [circuit for circuit in fine if circuit.active]
        ticket = self._circuits.delete(now_ns, fine)
        while not ticket.done:
            yield None
        dark = [candidate for candidate in fine if candidate not in active]
        return self._which(
            circuits, dark + self._circuits.done(ticket, active, on=False)
        )

    def _switch_light(
        self, circuits: Sequence[CalientCircuit | None], on: bool, now_ns: int
    ) -> _Done:
        fine = [
            circuit
            for circuit in self._circuits.idle(circuits)
            if circuit.active is not on
        ]
        ticket = (self._circuits.activate if on else self._circuits.deactivate)(
            now_ns, fine
        )
        while not ticket.done:
            yield None
        return self._which(circuits, self._circuits.done(ticket, fine, on))

    def _which(
        self, circuits: Sequence[CalientCircuit | None], done: Sequence[CalientCircuit]
    ) -> list[bool]:
        """Return whether each entry was carried out. A circuit that is named twice is carried out once."""
        left = {id(circuit) for circuit in done}
        results = []
        for circuit in circuits:
            results.append(id(circuit) in left)
            left.discard(id(circuit))
        return results

    def _row(self, circuit: CalientCircuit, now_ns: int) -> dict[str, Any]:
        condition = self._circuits.condition(circuit, now_ns)
        row: dict[str, Any] = {
            "name": circuit.name or circuit.conn,
            "group": circuit.group,
            "dir": "bi" if circuit.two_way else "uni",
        }
        for number, (into, out) in enumerate(circuit.halves(), start=1):
            ends = (into, self._device.size + out)
            inp, outp = (self._circuits.power(port, now_ns) for port in ends)
            wire = Wire(*ends)
            lossy = circuit.active and self._device.mirrors.is_tuned(wire, now_ns)
            row[f"half{number}"] = {
                "conn": circuit.conn
                if number == 1
                else replace(circuit, source=into, destination=out).conn,
                "inp": inp,
                "outp": outp,
                "loss": f"{self._device.mirrors.loss_db(wire):.2f}"
                if lossy and "NONE" not in (inp, outp)
                else "NONE",
                "alarm": "LOS" if circuit.active and inp == "NONE" else "CL",
                "as": condition.admin,
                "os": condition.operation,
                "oc": condition.capability,
            }
        return row

    # Ports, and the switch itself

    def _port_summary(self, now_ns: int) -> list[dict[str, str]]:
        circuits, size, rows = self._circuits.by_port(), self._device.size, []
        for port in range(1, size + 1):
            conns = (
                ",".join(circuit.conn for circuit in circuits.get(port, [])) or "NONE"
            )
            powers = (
                self._circuits.power(half, now_ns) for half in (port, size + port)
            )
            rows.append(
                {
                    "port": self._circuits.name(port),
                    "conn": conns,
                    "connid": conns,
                    "power": ",".join(powers),
                    "inalias": self._device.label(port),
                    "outalias": self._device.label(size + port),
                }
            )
        return rows

    def _port_detail(self, rows: Sequence[dict[str, str]], name: str) -> object:
        try:
            port = self._circuits.number(name)
        except CircuitError:
            return _status(False, "Invalid Port")
        row = rows[port - 1] | {"incircuit": "", "outcircuit": ""}
        for circuit in self._circuits.by_port().get(port, []):
            for into, out in circuit.halves():
                row |= {"incircuit": circuit.conn} if into == port else {}
                row |= {"outcircuit": circuit.conn} if out == port else {}
        return [row]

    def _configure(self, request: Request, now_ns: int) -> Answer:
        item = self._items(request, False)[0]
        try:
            port = self._circuits.number(_text(item, "port"))
        except CircuitError:
            return _reply(_status(False, "Invalid Port"))
        commands: list[Command] = []
        for half, number in (("in", port), ("out", port + self._device.size)):
            if f"{half}alias" in item:
                commands.append(SetLabel(number, _text(item, f"{half}alias")))
            if f"{half}as" in item:
                state = _text(item, f"{half}as").upper()
                if state not in ("IS", "OOS"):
                    return _reply(_status(False, f"{half}as: IS or OOS is wanted"))
                commands.append(SetAdmin((number,), state == "IS"))
        tickets = [self._device.submit(now_ns, command) for command in commands]
        while not all(ticket.done for ticket in tickets):
            yield None
        errors = [str(ticket.error) for ticket in tickets if ticket.error is not None]
        return _reply(_status(not errors, "; ".join(errors)))

    def _node(self, detail: str) -> dict[str, str]:
        if detail not in ("SYSCFG", "SOFTWARE", "HARDWARE"):
            raise HttpError(400, f"detail={detail[:40]} is not known")
        if detail == "SOFTWARE":
            return {"SWPACKAGE": SOFTWARE}
        failed = any(
            self._device.admin(port + 1) is Admin.FAILED
            for port in range(2 * self._device.size)
        )
        return {
            "NAME": self._switch.name,
            "SERIALNUMBER": self._switch.name,
            "CHASSISTYPE": f"S{self._device.size}",
            "STATUS": "FAIL" if failed else "OK",
        }


_METHODS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "crossconnects": {
        "list": ("GET",),
        "detail": ("GET",),
        "add": ("POST",),
        "badd": ("POST",),
        "bdel": ("POST",),
        "delete": ("DELETE",),
        "activate": ("POST",),
        "deactivate": ("POST",),
        "deleteall": ("POST",),
    },
    "ports": {"summary": ("GET",), "detail": ("GET",), "config": ("POST",)},
    "info": {"restversion": ("GET",), "softwareversion": ("GET",)},
    "node": {"summary": ("GET",)},
}


PROTOCOL = ManagementProtocol(
    CalientRestSession,
    8081,
    "curl {option}'http://{address}/rest/crossconnects/?id=list'",
    CalientCircuits.of,
)
