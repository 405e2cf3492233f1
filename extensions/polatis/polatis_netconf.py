"""Polatis (HUBER+SUHNER) series 6000/7000 over NETCONF: XML on SSH, port 830.

The upper half turns values into XML and XML into values, without I/O; the lower half is a client over
ncclient that never repeats a write.

The model is the vendor's ``optical-switch``. What its revisions changed is chosen by the revision that the
switch announces, and the newest is taken where it announces none:

===================  ==========================  ==============================
revision             list of cross-connects      state of the ports
===================  ==========================  ==============================
before 2017-08-04    ``cross-connects/pairs``    ``ports/port/port-status``
from then on         ``cross-connects/pair``     ``port-config/port/status``
===================  ==========================  ==============================

The model does not say that an egress may be used once only; nor does ``merge`` refuse to move a circuit. So a
pair is added with ``create`` and removed with ``delete``, which fail if someone else was there first; that no
egress is wanted twice is checked before anything is written, and that the switch shows none twice after it.
In REPLACE mode the whole list is replaced in one edit. A switch with a candidate datastore gets its edits
there, under a lock, and then one commit, so that whatever goes wrong before it has changed nothing; another
one gets them in its running datastore, and is asked to undo an edit that fails half-way if it says that it
can.

Tested against Debian's netconfd (yuma123), not against a switch. Not verified on one, and not relied on
further than the read-back reaches: that it takes ``create``; that a pair which stays in a replaced list keeps
its light; that ports of the old revision are enabled by writing ``ports/port/port-state``; which
notifications it sends (none is subscribed to).
"""

from __future__ import annotations

import contextlib
import logging
import re
import selectors
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import ncclient.transport.session
import paramiko
from lxml import etree
from ncclient import NCClientError, manager
from ncclient.operations import RaiseMode, RPCError, TimeoutExpiredError
from ncclient.transport import AuthenticationError, SSHSession, SSHUnknownHostError

from ringlight.controller.optical import readings
from ringlight.controller.optical.base import OpticalSwitchDriver
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
    StaleRevision,
    Unreachable,
)
from ringlight.controller.optical.inventory import Credentials, Entry, secrets_of
from ringlight.controller.optical.model import Alarm, Capabilities, Identity, Snapshot
from ringlight.fabric.crossconnect import CrossConnect

log = logging.getLogger(__name__)

# A session's thread looks this often for something to send, seconds; ncclient's own 0.1 is most of the
# time that a change of light takes.
ncclient.transport.session.TICK = 0.01

PORT = 830
#: Cross-connects per edit. The protocol has no limit; 512 pairs are 60 kB.
MAX_BATCH = 512
#: Longest wait for a session and for the answer to a question, seconds.
CONNECT_S, REPLY_S = 5.0, 5.0
#: Longest that ending a session politely may take, seconds.
CLOSE_S = 1.0
#: The revision of the model that renamed the list of cross-connects.
RENAMED = "2017-08-04"

BASE = "urn:ietf:params:xml:ns:netconf:base:1.0"
MODEL = "http://www.polatis.com/yang/optical-switch"
SYSTEM = "http://www.polatis.com/yang/polatis-switch"

# XML and values


@dataclass(frozen=True)
class Dialect:
    """Properties of a revision of the model.

    ``pair``: name of the list of cross-connects. ``ports`` and ``status``: container of the ports and leaf of
    their state. ``alarms``: the system's alarms can be read.
    """

    pair: str = "pair"
    ports: str = "port-config"
    status: str = "status"
    alarms: bool = False

    @property
    def old(self) -> bool:
        return self.pair == "pairs"


def choose_dialect(capabilities: Iterable[str]) -> Dialect:
    """Return the dialect for the models that the switch announces.

    Raises ProtocolError if the cross-connects' model is missing.
    """
    modules = {capability.partition("?")[0]: capability for capability in capabilities}
    announced = modules.get(MODEL)
    if announced is None:
        raise ProtocolError(f"the switch does not announce the model {MODEL}")
    revision = parse_qs(urlsplit(announced).query).get("revision", [RENAMED])[0]
    alarms = SYSTEM in modules
    # ISO dates compare as text.
    return (
        Dialect("pairs", "ports", "port-status", alarms)
        if revision < RENAMED
        else Dialect(alarms=alarms)
    )


def _model(inside: str) -> str:
    return f'<config xmlns="{BASE}" xmlns:nc="{BASE}">{inside}</config>'


def _pairs(batch: Iterable[CrossConnect], dialect: Dialect, operation: str = "") -> str:
    attribute = f' nc:operation="{operation}"' if operation else ""
    return "".join(
        f"<{dialect.pair}{attribute}><ingress>{xc.ingress}</ingress><egress>{xc.egress}</egress></{dialect.pair}>"
        for xc in batch
    )


def add_config(batch: Iterable[CrossConnect], dialect: Dialect) -> str:
    """Return an edit that makes these cross-connects and fails if one of their ingresses is in use."""
    return _model(
        f'<cross-connects xmlns="{MODEL}">{_pairs(batch, dialect, "create")}</cross-connects>'
    )


def remove_config(batch: Iterable[CrossConnect], dialect: Dialect) -> str:
    """Return an edit that removes these cross-connects and fails if one of their
    ingresses carries nothing.
    """
    deletions = "".join(
        f'<{dialect.pair} nc:operation="delete"><ingress>{xc.ingress}</ingress></{dialect.pair}>'
        for xc in batch
    )
    return _model(f'<cross-connects xmlns="{MODEL}">{deletions}</cross-connects>')


def replace_config(whole: Iterable[CrossConnect], dialect: Dialect) -> str:
    """Return an edit that replaces all cross-connects by exactly these."""
    inside = _pairs(whole, dialect)
    return _model(
        f'<cross-connects xmlns="{MODEL}" nc:operation="replace">{inside}</cross-connects>'
    )


def port_config(port: int, enabled: bool) -> str:
    """Return an edit of the old revision that enables or disables a port."""
    state = "PC_ENABLED" if enabled else "PC_DISABLED"
    leaves = f"<port-id>{port}</port-id><port-state>{state}</port-state>"
    return _model(f'<ports xmlns="{MODEL}"><port>{leaves}</port></ports>')


def port_rpc(port: int, enabled: bool) -> str:
    """Return the operation of the new revision that enables or disables a port."""
    leaf = "port-enab" if enabled else "port-disab"
    return f'<port-set-state xmlns="{MODEL}"><{leaf}>{port}</{leaf}></port-set-state>'


def state_filter(dialect: Dialect) -> list[str]:
    """Return the filters for everything that a reading contains."""
    leaves = f"<port-id/><{dialect.status}/>"
    return [
        f'<cross-connects xmlns="{MODEL}"/>',
        f'<{dialect.ports} xmlns="{MODEL}"><port>{leaves}</port></{dialect.ports}>',
    ]


def _line(error: BaseException) -> str:
    """Return the text of an error as one line: a parser repeats its input."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _data(text: str) -> list[etree._Element]:
    """Return the containers in an ``rpc-reply``. Raises ProtocolError."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)
    try:
        root = etree.fromstring(text.encode(), parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise ProtocolError(f"not XML: {_line(error)}", text) from None
    if root.tag != f"{{{BASE}}}rpc-reply":
        raise ProtocolError("not a reply", text)
    data = root.findall(f"{{{BASE}}}data")
    if len(data) != 1:
        raise ProtocolError("a reply without its data", text)
    return [child for child in data[0] if isinstance(child.tag, str)]


def _containers(text: str, name: str, namespace: str = MODEL) -> list[etree._Element]:
    return [child for child in _data(text) if child.tag == f"{{{namespace}}}{name}"]


def _leaves(entry: etree._Element) -> dict[str, str]:
    """Return the text of each leaf. Raises ProtocolError for a name that occurs twice."""
    leaves: dict[str, str] = {}
    for leaf in entry:
        if isinstance(leaf.tag, str):
            key = etree.QName(leaf).localname
            if key in leaves:
                raise ProtocolError(f"{etree.QName(entry).localname} has {key} twice")
            leaves[key] = (leaf.text or "").strip()
    return leaves


def _entries(
    containers: Iterable[etree._Element], name: str
) -> Iterator[dict[str, str]]:
    """Yield the entries of a list, each as its leaves. Raises ProtocolError if there is any other element."""
    for container in containers:
        for entry in container:
            if not isinstance(entry.tag, str):
                continue
            if entry.tag != f"{{{MODEL}}}{name}":
                raise ProtocolError(
                    f"there is something else than {name}", str(entry.tag)
                )
            yield _leaves(entry)


def _port(leaves: Mapping[str, str], key: str) -> int:
    text = leaves.get(key, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 5):
        raise ProtocolError(f"{key} is not a port", text)
    return int(text)


def parse_pairs(text: str, dialect: Dialect) -> tuple[CrossConnect, ...]:
    """Return the cross-connects of a reply. Raises ProtocolError."""
    entries = _entries(_containers(text, "cross-connects"), dialect.pair)
    return readings.checked_pairs(
        [
            CrossConnect(_port(leaves, "ingress"), _port(leaves, "egress"))
            for leaves in entries
        ]
    )


def parse_ports(text: str, dialect: Dialect) -> dict[int, str]:
    """Return the switch's word for the state of every port; empty if none is reported.

    Raises ProtocolError.
    """
    statuses: dict[int, str] = {}
    for leaves in _entries(_containers(text, dialect.ports), "port"):
        port, status = _port(leaves, "port-id"), leaves.get(dialect.status, "")
        if port in statuses:
            raise ProtocolError(f"port {port} is told twice")
        statuses[port] = status
    return statuses


def parse_powers(text: str) -> dict[int, float]:
    """Return the power in dBm at each port with a meter. Raises ProtocolError."""
    powers: dict[int, float] = {}
    for leaves in _entries(_containers(text, "opm-power"), "port"):
        port, power = _port(leaves, "port-id"), leaves.get("power")
        if power is None:
            continue
        if re.fullmatch(r"[+-]?\d{1,6}(\.\d{1,6})?", power, re.ASCII) is None:
            raise ProtocolError(f"port {port}: not an optical power", power)
        powers[port] = float(power)
    return powers


def parse_identity(text: str) -> Identity:
    """Return the identity that the switch reports. Raises ProtocolError."""
    leaves: dict[str, str] = {}
    for container in _containers(text, "product-information"):
        leaves |= _leaves(container)
    if not leaves.get("model-name"):
        raise ProtocolError("no product information", text)
    keys = ("manufacturer", "model-name", "serial-number", "software-version")
    return Identity(*(leaves.get(key, "") for key in keys))


def parse_system_alarms(text: str) -> Iterator[Alarm]:
    """Yield the alarms that the switch itself reports. Raises ProtocolError."""
    for container in _containers(text, "system-alarms", SYSTEM):
        for entry in container:
            if (
                not isinstance(entry.tag, str)
                or etree.QName(entry).localname != "alarm"
            ):
                continue
            leaves = _leaves(entry)
            words = " ".join(
                leaves[key]
                for key in ("alarm-type", "alarm-message")
                if leaves.get(key)
            )
            yield Alarm("SWITCH", None, words[:200] or "an alarm without words")


# The client


@dataclass(frozen=True)
class Access:
    """Address and credentials of a switch.

    ``host_key``: the switch's public key as in a known_hosts file, ``type base64``; by default the key is
    looked up in ``known_hosts``. ``verify``: if false, any key is accepted.
    """

    host: str
    port: int
    credentials: Credentials
    key_file: str | None = None
    host_key: str | None = None
    known_hosts: Path = Path("~/.ssh/known_hosts")
    verify: bool = True

    def expected_key(self) -> str | None:
        """Return the public key in base64 that the switch must have; None: any key is accepted.

        Raises Unreachable if no key is known.
        """
        if not self.verify:
            return None
        if self.host_key is not None:
            return self.host_key.split()[-1]
        path = self.known_hosts.expanduser()
        keys = paramiko.HostKeys()
        try:
            keys.load(str(path))
        except FileNotFoundError:
            pass
        except (OSError, paramiko.SSHException, ValueError) as error:
            raise Unreachable(f"{path}: {_line(error)}") from None
        names = (self.host, f"[{self.host}]:{self.port}")
        known = {
            kind: key
            for name in names
            for kind, key in (keys.lookup(name) or {}).items()
        }
        for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256", *sorted(known)):
            if kind in known:
                return str(known[kind].get_base64())
        raise Unreachable(
            f"the host key of {names[1]} is not in {path}; nothing was sent"
        )


class _Session(SSHSession):  # type: ignore[misc]  # ncclient has no types
    """ncclient's own leaves its selector, a file descriptor, to the garbage collector."""

    _selector: selectors.BaseSelector | None = None

    def _transport_register(self, selector: selectors.BaseSelector, event: int) -> None:
        self._selector = selector
        super()._transport_register(selector, event)

    def run(self) -> None:
        try:
            super().run()
        finally:
            if self._selector is not None:
                self._selector.close()


class NetconfClient:
    """Client with one session, opened on demand and reopened after an error. Not for several threads."""

    def __init__(self, name: str, access: Access) -> None:
        self.name = name
        self._access = access
        self._manager: Any = None
        self.dialect = Dialect()

    def close(self, polite: bool = True) -> None:
        """End the session; ``polite``: with a word to the switch before, for `CLOSE_S` at most."""
        ended, self._manager = self._manager, None
        if ended is None:
            return
        session = ended._session
        ended.timeout = CLOSE_S
        with contextlib.suppress(
            NCClientError, etree.LxmlError, UnicodeError, OSError, EOFError
        ):
            if polite and session.connected:
                ended.close_session()
        with contextlib.suppress(NCClientError, OSError, EOFError):
            session.close()

    def _connect(self, deadline: Deadline) -> Any:
        """Return the session, opened if necessary.

        Raises Unreachable, AuthFailed, DeadlineExceeded, ProtocolError.
        """
        if self._manager is not None and self._manager.connected:
            return self._manager
        self.close(polite=False)
        access = self._access
        expected = access.expected_key()
        limit_s = min(CONNECT_S, deadline.check())
        try:
            connection = socket.create_connection(
                (access.host, access.port), timeout=limit_s
            )
        except OSError as error:
            raise Unreachable(
                f"no connection to {access.host}:{access.port}: {error}"
            ) from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit = Deadline(limit_s)

        def cut() -> None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

        def end() -> None:
            if session.transport is not None:
                with contextlib.suppress(NCClientError, OSError, EOFError):
                    session.close()
            connection.close()

        # A peer that speaks no SSH is waited for longer than this in several places.
        alarm = threading.Timer(limit_s, cut)
        alarm.daemon = True
        alarm.start()
        handler = manager.make_device_handler(None)
        session = _Session(handler)
        try:
            session.connect(
                host=access.host,
                port=access.port,
                username=access.credentials.username,
                password=access.credentials.password or None,
                key_filename=access.key_file,
                allow_agent=False,
                look_for_keys=False,
                hostkey_verify=access.verify,
                hostkey_b64=expected,
                timeout=limit_s,
                sock=connection,
            )
        except AuthenticationError:
            end()
            raise AuthFailed(
                f"user {access.credentials.username} was not let in"
            ) from None
        except SSHUnknownHostError:
            end()
            raise Unreachable(
                f"{access.host}:{access.port} has another host key than the known one"
            ) from None
        except (
            NCClientError,
            paramiko.SSHException,
            OSError,
            EOFError,
            ValueError,
        ) as error:
            end()
            if deadline.left_s <= 0:
                raise DeadlineExceeded(
                    f"no session with {access.host}:{access.port} in time"
                ) from None
            reason = "no greeting in time" if limit.left_s <= 0 else _line(error)
            raise Unreachable(
                f"no session with {access.host}:{access.port}: {reason}"
            ) from None
        finally:
            alarm.cancel()
            alarm.join()
        made = manager.Manager(session, handler, timeout=limit_s)
        made.raise_mode = RaiseMode.ERRORS
        self._manager = made
        try:
            self.dialect = choose_dialect(list(made.server_capabilities))
        except ProtocolError:
            self.close()
            raise
        return made

    def ask(self, question: Callable[[], list[str]], deadline: Deadline) -> str:
        """Return the ``rpc-reply`` to subtree filters.

        If the switch has ended the session since its last use, a new session is opened, once. ``question`` is
        called once the dialect is known. Raises Unreachable, DeadlineExceeded, AuthFailed, PermissionDenied,
        ProtocolError.
        """
        was_open = self._manager is not None and self._manager.connected
        return ask_again(was_open, lambda: self._get(question, deadline))

    def _get(self, question: Callable[[], list[str]], deadline: Deadline) -> str:
        session = self._connect(deadline)
        try:
            reply = self._call(
                lambda: session.get(filter=question()), deadline, REPLY_S
            )
        except (Refused, StaleRevision) as error:
            raise ProtocolError(
                f"the switch does not let itself be read: {error}"
            ) from None
        return str(reply.xml)

    def _call(
        self,
        operation: Callable[[], Any],
        deadline: Deadline,
        most_s: float | None = None,
    ) -> Any:
        """Run one operation of the session. Return its result.

        Raises Unreachable if the session is lost, DeadlineExceeded, ProtocolError, PermissionDenied,
        StaleRevision, Refused. The first three end the session.
        """
        left_s = deadline.check()
        self._manager.timeout = left_s if most_s is None else min(left_s, most_s)
        try:
            return operation()
        except RPCError as error:
            text = " ".join(str(error.message or error.tag or "no reason").split())
            if error.tag == "access-denied":
                raise PermissionDenied(text) from None
            if error.tag in ("data-exists", "data-missing"):
                raise StaleRevision(f"someone else was faster: {text}") from None
            raise Refused(f"{error.tag}: {text}" if error.tag else text) from None
        except TimeoutExpiredError:
            self.close(polite=False)
            raise DeadlineExceeded("no reply in time") from None
        except (etree.LxmlError, UnicodeError) as error:
            self.close(polite=False)
            raise ProtocolError(f"a reply that is not XML: {_line(error)}") from None
        except (NCClientError, paramiko.SSHException, OSError, EOFError) as error:
            self.close(polite=False)
            raise Unreachable(f"session lost: {_line(error)}") from None

    def edit(self, config: Callable[[], str], deadline: Deadline) -> None:
        """Change the configuration, completely or not at all if the switch supports that.

        Raises Unreachable or DeadlineExceeded if nothing was changed, Refused, StaleRevision or
        PermissionDenied if the switch rejected the change, Indeterminate in every other case.
        """
        session = self._connect(deadline)
        if ":candidate" in session.server_capabilities:
            self._commit(session, config(), deadline)
            return
        undo = (
            "rollback-on-error"
            if ":rollback-on-error" in session.server_capabilities
            else None
        )
        self._surely(
            lambda: session.edit_config(
                config=config(), target="running", error_option=undo
            ),
            deadline,
        )

    def _commit(self, session: Any, config: str, deadline: Deadline) -> None:
        # Under the lock nobody else's edits are committed with ours; and the switch itself undoes ours when
        # the session ends before the commit.
        self._call(lambda: session.lock("candidate"), deadline)
        try:
            self._call(
                lambda: session.edit_config(config=config, target="candidate"), deadline
            )
            self._surely(session.commit, deadline)
        except OpticalError:
            if self._manager is not None:
                self._release(session, deadline, undo=True)
            raise
        self._release(session, deadline, undo=False)

    def _release(self, session: Any, deadline: Deadline, undo: bool) -> None:
        """Unlock; a session that cannot be unlocked is given up, which does the same."""
        try:
            if undo:
                self._call(session.discard_changes, deadline)
            self._call(lambda: session.unlock("candidate"), deadline)
        except OpticalError as error:
            log.info("%s: the session is ended to free its lock: %s", self.name, error)
            self.close(polite=False)

    def set_port_enabled(self, port: int, enabled: bool, deadline: Deadline) -> None:
        """Set a port's state by an edit in the old revision, else by an operation. Raises as :meth:`edit`."""
        session = self._connect(deadline)
        # The dialect is known from here on, not before: the switch may have been away when it was opened.
        if self.dialect.old:
            self.edit(lambda: port_config(port, enabled), deadline)
        else:
            rpc = etree.fromstring(port_rpc(port, enabled))
            self._surely(lambda: session.dispatch(rpc), deadline)

    def _surely(self, operation: Callable[[], Any], deadline: Deadline) -> None:
        """Run an operation that changes light.

        Raises DeadlineExceeded if it was not sent, Refused, StaleRevision or PermissionDenied if it was
        rejected, else Indeterminate.
        """
        deadline.check()
        try:
            self._call(operation, deadline)
        except (Unreachable, DeadlineExceeded, ProtocolError) as error:
            raise Indeterminate(f"no end of the edit seen: {error}") from error


# The driver


class NetconfDriver(OpticalSwitchDriver):
    """A dual-sided N x N switch: ingress 1..N, egress N+1..2N, from the inventory entry ``{"address":
    "host:port", "username": …, "password_env": …, "profile": {…}}``; port 830 unless told.

    ``key_file`` is a private key to log in with (the password then opens it). The switch's own key is looked
    for in ``known_hosts``, a file (default the user's), unless ``host_key`` is that key or ``verify`` is
    false.
    """

    def __init__(
        self, name: str, keys: Mapping[str, Any], size: int, openflow: object = None
    ) -> None:
        entry = Entry(name, keys)
        host, port = entry.address(PORT)
        credentials = entry.credentials()
        if credentials is None:
            raise entry.wrong("username", "is missing")
        access = Access(
            host,
            port,
            credentials,
            entry.text("key_file"),
            entry.text("host_key"),
            Path(str(keys.get("known_hosts", "~/.ssh/known_hosts"))),
            entry.flag("verify", True),
        )
        can = Capabilities.dual_sided(
            size, MAX_BATCH, entry.profile, max_replace=MAX_BATCH, port_admin=True
        )
        super().__init__(name, can, secrets_of(credentials))
        self._client = NetconfClient(name, access)

    def _open(self, deadline: Deadline) -> Identity:
        reply = self._client.ask(
            lambda: [f'<product-information xmlns="{MODEL}"/>'], deadline
        )
        identity = parse_identity(reply)
        readings.check_model(identity.model, self.size)
        return identity

    def _close(self) -> None:
        self._client.close()

    def _read(self, deadline: Deadline) -> Snapshot:
        client = self._client
        reply = client.ask(lambda: state_filter(client.dialect), deadline)
        words = parse_ports(reply, client.dialect)
        return readings.snapshot(self.name, parse_pairs(reply, client.dialect), words)

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._client.edit(lambda: remove_config(batch, self._client.dialect), deadline)

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._client.edit(lambda: add_config(batch, self._client.dialect), deadline)

    def _replace(self, whole: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._client.edit(lambda: replace_config(whole, self._client.dialect), deadline)

    def _set_port_enabled(self, port: int, enabled: bool, deadline: Deadline) -> None:
        self._client.set_port_enabled(port, enabled, deadline)

    def _power(
        self, ports: Sequence[int], deadline: Deadline
    ) -> Mapping[int, float | None]:
        return parse_powers(
            self._client.ask(lambda: [f'<opm-power xmlns="{MODEL}"/>'], deadline)
        )

    def _alarms(self, snapshot: Snapshot, deadline: Deadline) -> Iterable[Alarm]:
        yield from super()._alarms(snapshot, deadline)
        if self._client.dialect.alarms:
            yield from parse_system_alarms(
                self._client.ask(
                    lambda: [f'<system-alarms xmlns="{SYSTEM}"/>'], deadline
                )
            )
