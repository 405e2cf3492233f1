"""Debian's netconfd (yuma123) as an optical switch: a NETCONF server that is not ours, behind SSH.

It knows no light: it is a datastore with the nodes of ``data/yang`` here, our own stand-in for the vendor's
model. Where RINGLIGHT_POLATIS_YANG names a directory with the vendor's ``optical-switch@….yang``, that is
served, with what nothing stands behind here made configuration: who the switch is, its ports' state, its
power meters. RINGLIGHT_NETCONFD names a directory that Debian's packages netconfd, libyuma2 and
libyuma-base were unpacked in (``dpkg -x``) where they are not installed.

The SSH side is paramiko's, a subsystem that runs ``netconf-subsystem``; between the two everything can be
seen and hurt. What the stand-in cannot do by itself is done here: ``port-set-state`` becomes an edit of
the ports' state, which in the stand-in is configuration.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import re
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import paramiko

USER, PASSWORD = "operator", "correct horse"
MODEL = "http://www.polatis.com/yang/optical-switch"
SYSTEM = "http://www.polatis.com/yang/polatis-switch"
BASE = "urn:ietf:params:xml:ns:netconf:base:1.0"
STAND_IN = Path(__file__).parent / "data/yang"
START_S = 20.0
DRIP_S = 0.2
#: Silence after which netconfd is nudged, seconds.
NUDGE_S = 0.3
_END = b"]]>]]>"
_CHUNK = re.compile(rb"\n#(\d{1,9})\n")
_BASE_11 = b"urn:ietf:params:netconf:base:1.1"
#: The edit that stands for an operation, whose own answer nobody gets.
_OURS = b"ours"


def root() -> Path:
    return Path(os.environ.get("RINGLIGHT_NETCONFD", "/"))


def missing() -> str:
    """Why there can be no server here; empty if there can."""
    if not (root() / "usr/sbin/netconfd").exists():
        return "Debian's netconfd is not here: apt-get install netconfd"
    done = subprocess.run(
        [root() / "usr/sbin/netconfd", "--version"],
        env=_environment(),
        capture_output=True,
    )
    return (
        f"netconfd does not run: {done.stderr.decode()[:200]}"
        if done.returncode
        else ""
    )


def _environment() -> dict[str, str]:
    libraries = root() / "usr/lib/x86_64-linux-gnu"
    modules = root() / "usr/share/yuma/modules"
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(libraries)
        if root() != Path("/")
        else os.environ.get("LD_LIBRARY_PATH", ""),
        "YUMA_MODPATH": str(modules),
        "USER": getpass.getuser(),
        "SSH_CONNECTION": "127.0.0.1 50000 127.0.0.1 830",
    }


def _has_more(inside: subprocess.Popen[bytes]) -> bool:
    """Whether netconfd says something now. Where it has read a greeting and the first request at once, it
    stands still until another byte comes; a line feed says nothing in either framing."""
    assert inside.stdout is not None
    return bool(select.select([inside.stdout], [], [], NUDGE_S)[0])


class Framing:
    """Bytes to messages and back, in both framings of RFC 6242."""

    def __init__(self) -> None:
        self.chunked = False
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._bytes += data
        while (message := self._next()) is not None:
            yield message

    def _next(self) -> bytes | None:
        if not self.chunked:
            head, end, rest = bytes(self._bytes).partition(_END)
            if not end:
                return None
            self._bytes = bytearray(rest)
            return head
        at = 0
        parts: list[bytes] = []
        while True:
            if self._bytes.startswith(b"\n##\n", at):
                del self._bytes[: at + 4]
                return b"".join(parts)
            match = _CHUNK.match(self._bytes, at)
            if match is None or len(self._bytes) < match.end() + int(match[1]):
                return None
            parts.append(bytes(self._bytes[match.end() : match.end() + int(match[1])]))
            at = match.end() + int(match[1])

    def pack(self, message: bytes) -> bytes:
        return (
            b"\n#%d\n%s\n##\n" % (len(message), message)
            if self.chunked
            else message + _END
        )


class _Session(paramiko.ServerInterface):  # type: ignore[misc]  # paramiko has no types
    """Who may come in, and that all they get is NETCONF."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def get_allowed_auths(self, username: str) -> str:
        return "password"

    def check_auth_password(self, username: str, password: str) -> int:
        known = (username, password) == (USER, PASSWORD)
        return int(paramiko.AUTH_SUCCESSFUL if known else paramiko.AUTH_FAILED)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        unknown = paramiko.OPEN_FAILED_UNKNOWN_CHANNEL_TYPE
        return int(paramiko.OPEN_SUCCEEDED if kind == "session" else unknown)

    def check_channel_subsystem_request(
        self, channel: paramiko.Channel, name: str
    ) -> bool:
        if name == "netconf":
            self.asked.set()
        return name == "netconf"


class NetconfServer:
    """netconfd with ``ports`` ports, reached at ``address``.

    ``target``: which datastore it lets itself be edited in. ``old``: the model's revision before 2017-08-04.
    ``powers``: what the ports' meters read, dBm.
    ``seen``: the edits that clients have sent. ``lose``: the next edit does not reach it (False), or its
    answer does not come back (True), and the session ends. ``garble``: answers to readings are cut off.
    ``chatter``: a notification goes out before every answer. ``mishap``: what becomes of answers, `garbage`
    (as many other bytes), `truncate` (half of it, and the session's end) or `slow-drip` (byte by byte,
    ``DRIP_S`` apart); or `deny`: the next edit is refused and does not reach it.
    """

    def __init__(
        self,
        ports: int,
        failed: Iterable[int] = (),
        target: str = "candidate",
        old: bool = False,
        powers: Mapping[int, float] = MappingProxyType({1: -3.25}),
    ) -> None:
        self.ports, self.target, self.old, self.powers = ports, target, old, powers
        self.seen: list[str] = []
        self.lose: bool | None = None
        self.garble = False
        self.chatter = False
        self.mishap = ""
        self._directory = Path(tempfile.mkdtemp(prefix="ringlight-netconfd-"))
        self._transports: set[paramiko.Transport] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._key = paramiko.ECDSAKey.generate()
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: socket.socket | None = None
        try:
            self._start(set(failed))
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
            self._spawn(self._accept)
        except BaseException:
            self.close()
            raise

    @property
    def host_key(self) -> str:
        return f"{self._key.get_name()} {self._key.get_base64()}"

    def _yang(self) -> Path:
        """The directory of the model that is served."""
        vendors = os.environ.get("RINGLIGHT_POLATIS_YANG")
        model = self._directory / "yang"
        model.mkdir()
        if vendors and not self.old:
            text = sorted(Path(vendors).glob("optical-switch@*.yang"))[-1].read_text()
            # yuma refuses a range of decimals on a derived type.
            text = re.sub(
                r"\{\s*range\s+\"?-?\d+\.\d+\s*\.\.\s*-?\d+\.\d+\"?;\s*\}", ";", text
            )
            for node in ("product-information", "port-config", "opm-power"):
                at = text.index("config false;", text.index(f"container {node} "))
                text = text[:at] + text[at + len("config false;") :]
            (model / "optical-switch.yang").write_text(text)
        else:
            name = "optical-switch-old.yang" if self.old else "optical-switch.yang"
            shutil.copy(STAND_IN / name, model / "optical-switch.yang")
        return model

    def _content(self, failed: set[int]) -> str:
        """What stands in the datastore at first: everything but cross-connects."""
        size = self.ports // 2
        container = "ports" if self.old else "port-config"
        ports = "".join(
            f"<port><port-id>{port}</port-id>{self._status(port in failed)}</port>"
            for port in range(1, self.ports + 1)
        )
        meters = "".join(
            f"<port><port-id>{port}</port-id><power>{power:.2f}</power></port>"
            for port, power in self.powers.items()
        )
        return (
            f'<product-information xmlns="{MODEL}"><manufacturer>Stand-in</manufacturer><serial-number>1'
            f"</serial-number><model-name>N-VST-{size}x{size}-LA1-DMHNV-701</model-name><software-version>2.13"
            f'</software-version></product-information><{container} xmlns="{MODEL}">{ports}</{container}>'
            f'<opm-power xmlns="{MODEL}">{meters}</opm-power>'
        )

    def _start(self, failed: set[int]) -> None:
        startup = self._directory / "startup.xml"
        startup.write_text(f'<config xmlns="{BASE}">{self._content(failed)}</config>')
        # Where it counts its transactions: in their user's file two at once spoil the count for each other.
        (self._directory / "data").mkdir()
        modules = f"{root() / 'usr/share/yuma/modules'}:{self._yang()}"
        self._socket = self._directory / "ncx.sock"
        self._command = [
            str(root() / "usr/sbin/netconfd"),
            f"--modpath={modules}",
            f"--startup={startup}",
            "--startup-error=continue",
            f"--superuser={getpass.getuser()}",
            f"--target={self.target}",
            "--module=optical-switch",
            f"--ncxserver-sockname={self._socket}",
            "--log-level=error",
        ]
        self._launch({"YUMA_MODPATH": modules})

    def _launch(self, environment: Mapping[str, str]) -> None:
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env={
                    **_environment(),
                    **environment,
                    "YUMA_HOME": str(self._directory),
                },
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not self._socket.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"netconfd did not start: {(self._directory / 'log').read_text()[-800:]}"
                )
            time.sleep(0.01)

    def restart(self) -> None:
        """It is killed and started again; it has saved what stood in its datastore."""
        self._end()
        self._socket.unlink()
        self._launch({"YUMA_MODPATH": self._command[1].partition("=")[2]})

    def _end(self) -> None:
        if self._process is not None:
            # Asked to end it takes a second, and there is nothing to keep.
            self._process.kill()
            self._process.wait(5)

    def _status(self, failed: bool) -> str:
        word = "FAILED" if failed else "ENABLED"
        return (
            f"<port-status>PO_{word}</port-status>"
            if self.old
            else f"<status>{word}</status>"
        )

    def close(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        self.drop()
        for thread in self._threads:
            thread.join(5)
        self._end()
        shutil.rmtree(self._directory, ignore_errors=True)

    def drop(self) -> None:
        """End every session."""
        with self._lock:
            open_ones = list(self._transports)
        for transport in open_ones:
            transport.close()

    def ask(self, *operations: str) -> list[str]:
        """The answers to these in a session of their own. Raises as what :meth:`session` gives."""
        with self.session() as ask:
            return [ask(one) for one in operations]

    @contextlib.contextmanager
    def session(self) -> Iterator[Callable[[str], str]]:
        """A session past SSH and all that is counted and hurt here: a function that has one operation done
        and gives its answer. It raises RuntimeError if that is an error."""
        framing = Framing()
        with subprocess.Popen(
            self._subsystem(),
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as inside:

            def exchange(message: str) -> str:
                assert inside.stdin is not None
                assert inside.stdout is not None
                inside.stdin.write(framing.pack(message.encode()))
                inside.stdin.flush()
                deadline = time.monotonic() + START_S
                while time.monotonic() < deadline:
                    if not _has_more(inside):
                        inside.stdin.write(b"\n")
                        inside.stdin.flush()
                    elif data := os.read(inside.stdout.fileno(), 1 << 16):
                        for answer in framing.feed(data):
                            return answer.decode()
                    else:
                        break
                raise RuntimeError(f"netconfd has not answered: {message}")

            def ask(operation: str) -> str:
                answer = exchange(
                    f'<rpc xmlns="{BASE}" message-id="1">{operation}</rpc>'
                )
                if "<rpc-error>" in answer:
                    raise RuntimeError(f"netconfd: {operation}: {answer}")
                return answer

            try:
                capability = "<capability>urn:ietf:params:netconf:base:1.0</capability>"
                exchange(
                    f'<hello xmlns="{BASE}"><capabilities>{capability}</capabilities></hello>'
                )
                yield ask
            finally:
                inside.kill()

    def _subsystem(self) -> list[str]:
        return [
            str(root() / "usr/sbin/netconf-subsystem"),
            f"--ncxserver-sockname=830@{self._socket}",
        ]

    def _spawn(self, what: object, *arguments: object) -> None:
        thread = threading.Thread(
            target=what, args=arguments, name="netconf", daemon=True
        )  # type: ignore[arg-type]
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = paramiko.Transport(connection)
        transport.add_server_key(self._key)
        with self._lock:
            self._transports.add(transport)
        try:
            session = _Session()
            transport.start_server(server=session)
            channel = None
            while channel is None and transport.is_active():
                channel = transport.accept(0.1)
            if channel is not None and session.asked.wait(10):
                self._carry(channel)
        except (paramiko.SSHException, OSError, EOFError):
            pass
        finally:
            transport.close()
            with self._lock:
                self._transports.discard(transport)

    def _carry(self, channel: paramiko.Channel) -> None:
        inside = subprocess.Popen(
            self._subsystem(),
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert inside.stdin is not None
        assert inside.stdout is not None
        conversation = _Conversation(self, channel, inside)
        back = threading.Thread(
            target=conversation.answers, name="netconf", daemon=True
        )
        back.start()
        try:
            conversation.requests()
        finally:
            with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                channel.close()
            inside.terminate()
            inside.wait(5)
            back.join(5)
            inside.stdin.close()
            inside.stdout.close()


class _Conversation:
    """One client's messages and the answers to them."""

    def __init__(
        self,
        server: NetconfServer,
        channel: paramiko.Channel,
        inside: subprocess.Popen[bytes],
    ) -> None:
        self._server, self._channel, self._inside = server, channel, inside
        self._up, self._down = Framing(), Framing()
        self._greeted = {"client": b"", "server": b""}
        #: What is done to the answer that comes next.
        self._next: str | None = None
        #: Whether it has yet to answer, and whether it was nudged to.
        self._asked = self._nudged = False
        self._lock = threading.Lock()

    def _greet(self, who: str, hello: bytes) -> None:
        with self._lock:
            self._greeted[who] = hello
            if all(_BASE_11 in one for one in self._greeted.values()):
                self._up.chunked = self._down.chunked = True

    def requests(self) -> None:
        while data := self._channel.recv(1 << 16):
            for message in self._up.feed(data):
                if not self._greeted["client"]:
                    hello = self._up.pack(message)
                    self._greet("client", message)
                    self._send(hello)
                elif not self._request(message):
                    return

    def _send(self, data: bytes) -> None:
        assert self._inside.stdin is not None
        with self._lock, contextlib.suppress(OSError):
            # What it was nudged with is the first byte of a chunk.
            self._inside.stdin.write(
                data[1:] if self._nudged and data.startswith(b"\n#") else data
            )
            self._inside.stdin.flush()
            self._nudged, self._asked = False, True

    def _nudge(self) -> None:
        assert self._inside.stdin is not None
        with self._lock, contextlib.suppress(OSError):
            if self._asked and not self._nudged:
                self._inside.stdin.write(b"\n")
                self._inside.stdin.flush()
                self._nudged = True

    def _request(self, message: bytes) -> bool:
        server = self._server
        edit = re.search(rb"<(?:\w+:)?(edit-config|port-set-state)[ >]", message)
        commit = re.search(rb"<(?:\w+:)?commit[ />]", message) is not None
        if edit is not None:
            server.seen.append(message.decode())
        # What decides is the commit, where there is a candidate; a port's state is edited at once.
        decides = commit or (
            edit is not None
            and (server.target == "running" or edit[1] != b"edit-config")
        )
        if decides and server.mishap == "deny":
            server.mishap = ""
            self._refuse(message)
            return True
        if decides and server.lose is not None:
            lose, server.lose = server.lose, None
            if not lose:
                return False
            self._next = "lose"
        elif server.garble and re.search(rb"<(?:\w+:)?get[ >]", message):
            self._next = "garble"
        for one in self._carried_out(message):
            self._send(self._up.pack(one))
        return True

    def _carried_out(self, message: bytes) -> list[bytes]:
        """The message, or the edits that stand for what nothing here does: a port that is enabled says so."""
        if self._server.old:
            return [
                re.sub(
                    rb"<port-state>PC_(\w+)</port-state>",
                    rb"\g<0><port-status>PO_\1</port-status>",
                    message,
                )
            ]
        found = re.findall(rb"<port-(enab|disab)>(\d+)</port-", message)
        if b"<port-set-state" not in message or not found:
            return [message]
        number = re.search(rb'message-id="([^"]*)"', message)
        assert number is not None
        words = {b"enab": "ENABLED", b"disab": "DISABLED"}
        ports = "".join(
            f"<port><port-id>{port.decode()}</port-id><status>{words[verb]}</status></port>"
            for verb, port in found
        )
        edit = (
            f"<edit-config><target><{self._server.target}/></target><config>"
            f'<port-config xmlns="{MODEL}">{ports}</port-config></config></edit-config>'
        )
        rpcs = [edit] if self._server.target == "running" else [edit, "<commit/>"]
        numbers = [_OURS] * (len(rpcs) - 1) + [number[1]]
        return [
            f'<rpc xmlns="{BASE}" message-id="{one.decode()}">{rpc}</rpc>'.encode()
            for one, rpc in zip(numbers, rpcs, strict=True)
        ]

    def _refuse(self, message: bytes) -> None:
        number = re.search(rb'message-id="([^"]*)"', message)
        assert number is not None
        reason = (
            "<error-type>application</error-type><error-tag>operation-failed</error-tag>"
            "<error-severity>error</error-severity><error-message>not today</error-message>"
        )
        told = f'<rpc-reply xmlns="{BASE}" message-id="{number[1].decode()}"><rpc-error>{reason}</rpc-error>'
        self._channel.sendall(self._down.pack(f"{told}</rpc-reply>".encode()))

    def answers(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._pass_answers()
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()

    def _pass_answers(self) -> None:
        assert self._inside.stdout is not None
        while True:
            while not _has_more(self._inside):
                self._nudge()
            if not (data := os.read(self._inside.stdout.fileno(), 1 << 16)):
                return
            self._asked = False
            for message in self._down.feed(data):
                if not self._greeted["server"]:
                    hello = self._down.pack(message)
                    self._greet("server", message)
                    self._channel.sendall(hello)
                elif not self._answer(message):
                    return

    def _answer(self, message: bytes) -> bool:
        if b'message-id="%s"' % _OURS in message:
            return True
        told, self._next = self._next, None
        if told == "lose":
            return False
        if told == "garble":
            message = message[: len(message) // 2]
        if self._server.chatter:
            note = (
                '<notification xmlns="urn:ietf:params:xml:ns:netconf:notification:1.0">'
                f'<eventTime>2026-11-23T09:00:00Z</eventTime><system-error xmlns="{SYSTEM}"/></notification>'
            )
            self._channel.sendall(self._down.pack(note.encode()))
        return self._deliver(self._down.pack(message))

    def _deliver(self, data: bytes) -> bool:
        """Whether the session goes on."""
        match self._server.mishap:
            case "garbage":
                data = random.Random(1).randbytes(len(data))
            case "truncate":
                self._channel.sendall(data[: len(data) // 2])
                return False
            case "slow-drip":
                for at in range(len(data)):
                    if self._server.mishap:
                        time.sleep(DRIP_S)
                    self._channel.sendall(data[at : at + 1])
                return True
        self._channel.sendall(data)
        return True
