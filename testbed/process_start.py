"""Starts of processes of a lab: a fork server forks them, or they are executed if no server answers."""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ringlight import IMPORT_PATH

#: Environment variable with the path of the server's socket: who starts a process has it forked there.
SOCKET = "RINGLIGHT_FORKSERVER"
#: Longest request, bytes; of the server's own arguments and environment, whose place those of others take.
LONGEST_BYTES = 1 << 15
#: Longest wait for a fork server's answer, seconds.
ANSWER_S = 60.0
#: Longest wait for the end of a killed process, seconds.
KILLED_S = 5.0
#: Exit code reported of a process whose server has ended before it.
_UNKNOWN = 255


class _UnableError(Exception):
    """No server can fork this one."""


class Forked:
    """A process that a fork server has forked; has what is used of ``subprocess.Popen``."""

    def __init__(
        self, args: Sequence[str], connection: socket.socket, pid: int, pidfd: int
    ) -> None:
        self.args, self.pid = args, pid
        # None while it runs, as of a Popen.
        self.returncode: int | Any = None
        # The server sends the exit code, and sees by the connection's end that nothing waits for it any more.
        self._connection, self._pidfd = connection, pidfd
        self._lock = threading.Lock()

    def __del__(self) -> None:
        self._connection.close()
        os.close(self._pidfd)

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal's number; None while the process runs."""
        with self._lock:
            if self.returncode is None and _readable(self._connection.fileno(), 0):
                message = _received(self._connection)
                if message or _readable(self._pidfd, 0):
                    self.returncode = int(message) if message else _UNKNOWN
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process. Return its exit code, or minus the signal's number.

        Raises subprocess.TimeoutExpired.
        """
        if not _readable(self._pidfd, timeout):
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
        # The server tells it at once, unless it is stopped, or is no more.
        _readable(self._connection.fileno(), ANSWER_S)
        code = self.poll()
        return _UNKNOWN if code is None else code

    def send_signal(self, number: int) -> None:
        with self._lock:
            if self.returncode is None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, number)

    def pidfd(self) -> int:
        """Return a descriptor of the process, for the caller to close, even after the process has ended."""
        return os.dup(self._pidfd)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


#: A process of a lab.
Process = subprocess.Popen[bytes] | Forked


def start_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: BinaryIO,
    *,
    errors: BinaryIO | None = None,
    directory: Path = IMPORT_PATH,
    follow: signal.Signals | None = None,
    user: int | None = None,
    as_client: bool = True,
) -> Process:
    """Start a process in a session of its own, in the network namespace of the calling thread. Return the
    process.

    ``environment`` may name a server (:data:`SOCKET`), which forks what ``python -m`` would execute.
    ``output`` takes the process's output, unless there is another file for ``errors``. ``follow``: signal
    that the process gets when its starter ends. ``user``: its user id, without any privilege and unable to
    gain one. Such a process does not learn of the server. ``as_client``: whether it may use the server itself.
    Raises OSError.
    """
    path = environment.get(SOCKET)
    if user is not None or not as_client:
        environment = {
            name: value for name, value in environment.items() if name != SOCKET
        }
    if path and command[0] == sys.executable and "-m" in command:
        with suppress(_UnableError):
            return _ask(
                path,
                command,
                environment,
                (output, errors or output),
                directory,
                follow,
                user,
            )
    return subprocess.Popen(
        [*dying_with_starter(follow), *_without_privileges(user), *command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors or output,
        env=environment,
        cwd=directory,
        # Ctrl-C then reaches only this process, which ends the others in order.
        start_new_session=True,
    )


def dying_with_starter(number: signal.Signals | None) -> list[str]:
    """Return the words before a command that give its process a signal when the thread that started it ends.

    Returns no words if ``number`` is None or the machine has no setpriv.
    """
    setpriv = shutil.which("setpriv") if number is not None else None
    return (
        [setpriv, "--pdeathsig", number.name.removeprefix("SIG")]
        if setpriv and number
        else []
    )


def _without_privileges(user: int | None) -> list[str]:
    """Return the words before a command that make its process a user that has no privilege and gains none.

    Returns no words if ``user`` is None.
    """
    if user is None:
        return []
    to = [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", *to]


def end_process(process: Process, patience_s: float) -> bool:
    """Terminate a process, and kill it if it still runs after ``patience_s`` seconds.

    Return whether it ended without a kill. Raises subprocess.TimeoutExpired if even a kill does not end it.
    """
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(KILLED_S)
        return False
    return True


def pidfd_of(process: Process) -> int:
    """Return a descriptor of a process, for the caller to close. Raises OSError."""
    return (
        process.pidfd() if isinstance(process, Forked) else os.pidfd_open(process.pid)
    )


@dataclass(frozen=True)
class ForkRequest:
    """``mounts``: the mount namespace that the process belongs in. ``files``: limits of its open files.

    ``user``: who it is to be, without privileges; None: as the server is.
    """

    command: list[str]
    environment: dict[str, str]
    directory: str
    follow: int
    mounts: str
    files: tuple[int, int]
    user: int | None


def _ask(
    path: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    outputs: tuple[BinaryIO, BinaryIO],
    directory: Path,
    follow: signal.Signals | None,
    user: int | None,
) -> Forked:
    request = ForkRequest(
        list(command),
        dict(environment),
        str(directory),
        int(follow or 0),
        mount_namespace(),
        resource.getrlimit(resource.RLIMIT_NOFILE),
        user,
    )
    message = json.dumps(asdict(request)).encode()
    if len(message) > LONGEST_BYTES:
        raise _UnableError
    with ExitStack() as undo:
        connection = undo.enter_context(
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        undo.callback(os.close, namespace)
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(path)
            socket.send_fds(
                connection,
                [message],
                [*(output.fileno() for output in outputs), namespace],
            )
            answer, (pidfd, *_), _, _ = socket.recv_fds(connection, 64, 1)
        except (OSError, ValueError):
            # There is no server, or it has ended, or it is elsewhere.
            raise _UnableError from None
        connection.settimeout(None)
        undo.pop_all()
    os.close(namespace)
    return Forked(command, connection, int(answer), pidfd)


def importing(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables by which a process imports this package first, then what the user's own path has."""
    own = environment.get("PYTHONPATH")
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join([str(IMPORT_PATH), *([own] if own else [])]),
    }


def mount_namespace() -> str:
    """Return the name that the kernel gives this process's mount namespace."""
    return os.readlink("/proc/self/ns/mnt")


def _readable(descriptor: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000))


def _received(connection: socket.socket) -> bytes:
    """Return the message received, empty if the other end is gone."""
    try:
        return connection.recv(64)
    except ConnectionError:
        return b""
