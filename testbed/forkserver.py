"""A fork server: forks a lab's Python processes from one that has imported what they need.

A process then starts in some milliseconds, in place of 0.1 s (an optical switch) to 1 s (a testbed). It has
its own session, standard streams, environment, arguments and network namespace, as if it had been executed,
and ``/proc`` shows them, so that labs find it by their label. It is the server's child: the server takes its
exit code and passes it on.

A server of a process that was forked itself is forked from that process, and imports nothing again.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

from ringlight import IMPORT_PATH
from ringlight.testbed.forked_process import (
    ArgumentRoom,
    become,
    close_all,
    end_process,
    exit_code_of,
)
from ringlight.testbed.process_start import (
    ANSWER_S,
    LONGEST_BYTES,
    SOCKET,
    ForkRequest,
    mount_namespace,
)

#: How the folders of sockets of servers that last as long as a command begin.
_FOLDER = "ringlight-forks-"


class ForkServer:
    """A server, which ends with the process that started it or at :meth:`close`; the processes that it forked
    keep running.

    ``path``: its socket, which lives as long as this. ``modules``: what it imports first. Raises OSError.
    """

    def __init__(
        self, path: Path, modules: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.path = path
        # Who calls before all is imported waits.
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen(128)
            if can_fork_server():
                self._process: subprocess.Popen[bytes] | _OwnFork = _fork_server(
                    listener, modules, environment
                )
                return
            room = "-" * LONGEST_BYTES
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    __name__,
                    str(listener.fileno()),
                    *modules,
                    room,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                env={**environment, "RINGLIGHT_ROOM": room},
                cwd=IMPORT_PATH,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        with suppress(FileNotFoundError):
            self.path.unlink()
        # Also while it still imports, and what is forked goes on as at any end of it.
        self._process.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(5.0)


@contextmanager
def forking(modules: Sequence[str]) -> Iterator[bool]:
    """Have a server fork the processes that root starts in the block. Yield whether the server ends with the
    block.

    No server is started if there is one already. It imports ``modules`` while its caller does other things.
    Raises OSError.
    """
    if SOCKET in os.environ or os.geteuid() != 0:
        yield False
        return
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as folder:
        server = ForkServer(Path(folder) / "socket", modules, os.environ)
        os.environ[SOCKET] = str(server.path)
        try:
            yield True
        finally:
            del os.environ[SOCKET]
            server.close()


def prepare(path: str, modules: Sequence[str]) -> None:
    """Have a server import modules before it forks anything else. Without effect if there is no server."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
        suppress(OSError),
    ):
        connection.settimeout(ANSWER_S)
        connection.connect(path)
        connection.send(json.dumps(modules).encode())


# -- the server


@dataclass
class _Child:
    """``left``: the process that requested it has ended, or needs it no more."""

    pid: int
    pidfd: int
    connection: socket.socket
    follow: int
    left: bool = False

    def close(self) -> None:
        os.close(self.pidfd)
        self.connection.close()


#: What a process is to be, and the descriptors that came with it: of output, errors and network namespace.
_Forked = tuple[ForkRequest, list[int]]


def _serve(listener: socket.socket) -> _Forked | None:
    """Fork and take exit codes until standard input ends. Returns in each process that it has forked, too."""
    children: list[_Child] = []
    while True:
        callers = [child.connection.fileno() for child in children if not child.left]
        pidfds = [child.pidfd for child in children]
        poll = select.poll()
        for descriptor in (0, listener.fileno(), *pidfds, *callers):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        if 0 in ready:
            _forget(listener.getsockname())
            return None
        for child in [child for child in children if child.pidfd in ready]:
            code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
            with suppress(OSError):
                child.connection.send(str(code).encode())
            child.close()
            children.remove(child)
        for child in [
            child for child in children if child.connection.fileno() in ready
        ]:
            child.left = True
            if child.follow:
                signal.pidfd_send_signal(child.pidfd, child.follow)
        if listener.fileno() in ready:
            connection, _ = listener.accept()
            made = _fork(connection)
            if made is None:
                # The requesting process sees it, and executes the command.
                connection.close()
            elif isinstance(made, _Child):
                children.append(made)
            else:
                connection.close()
                listener.close()
                for child in children:
                    child.close()
                return made


def _forget(path: str) -> None:
    """Remove the folder of :func:`forking` around a socket, whose owner may have been killed and left it."""
    if os.path.basename(os.path.dirname(path)).startswith(_FOLDER):
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)


def _fork(connection: socket.socket) -> _Child | _Forked | None:
    """Fork a process by the request on a connection.

    Return the child in the server, and the request in the child. Returns None if no process was forked.
    """
    message, descriptors, _, _ = socket.recv_fds(connection, LONGEST_BYTES, 3)
    try:
        order = json.loads(message)
        if isinstance(order, list):
            _import(order)
            return None
        request = ForkRequest(**order)
        pid = os.fork() if request.mounts == mount_namespace() else None
    except (OSError, ValueError):
        pid = None
    if pid == 0:
        return request, descriptors
    close_all(descriptors)
    if pid is None:
        return None
    child = _Child(pid, os.pidfd_open(pid), connection, request.follow)
    with suppress(OSError):
        socket.send_fds(connection, [str(pid).encode()], [child.pidfd])
    return child


# -- a server that is forked

#: Of a process that was forked: where the kernel shows its arguments.
_own_room: ArgumentRoom | None = None


@dataclass
class _OwnFork:
    """A server that this process has forked; has what is used of ``subprocess.Popen``. It ends with
    ``stdin``."""

    pid: int
    stdin: BinaryIO

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, _timeout: float) -> None:
        """Wait for the end of the process, which has been killed."""
        os.waitpid(self.pid, 0)


def can_fork_server() -> bool:
    """Return whether this process was forked itself and has a single thread, so that a server costs next to
    nothing.

    Other threads would be missing in the server, with all that they had locked.
    """
    return _own_room is not None and threading.active_count() == 1


def _fork_server(
    listener: socket.socket, modules: Sequence[str], environment: Mapping[str, str]
) -> _OwnFork:
    """Fork a server from this process and return it. Raises OSError."""
    near, far = os.pipe()
    pid = os.fork()
    if pid:
        os.close(near)
        return _OwnFork(pid, os.fdopen(far, "wb"))
    try:
        assert _own_room is not None
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(near, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        # Nothing of what its parent has open may live as long as it, such as the lock of a lab; nor be
        # closed by the parent's objects once their numbers are those of others.
        gc.collect()
        gc.freeze()
        kept = os.dup(listener.fileno())
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in (0, 1, 2, kept):
                with suppress(OSError):
                    os.close(int(name))
        os.environ.clear()
        os.environ.update(environment)
        _own_room.show([sys.executable, "-m", __name__, "forked"], environment)
        _import(modules)
        _serve_all(socket.socket(fileno=kept), _own_room)
    finally:
        os._exit(1)


def main() -> None:
    room = ArgumentRoom()
    _, listener, *modules, _ = sys.argv
    environment = {
        name: value for name, value in os.environ.items() if name != "RINGLIGHT_ROOM"
    }
    os.environ.clear()
    os.environ.update(environment)
    room.show(
        [sys.executable, "-m", "ringlight.testbed.forkserver", *modules], environment
    )
    _import(modules)
    _serve_all(socket.socket(fileno=int(listener)), room)


def _import(modules: Sequence[str]) -> None:
    """Import modules. Collections need not look at what they made, then or later, and so do not copy its
    pages."""
    gc.disable()
    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()
    gc.enable()


def _serve_all(listener: socket.socket, room: ArgumentRoom) -> None:
    """Serve until standard input has ended. A process that the server forks does its work, and exits."""
    global _own_room
    if (forked := _serve(listener)) is not None:
        _own_room = room
        become(*forked, room)
        end_process(exit_code_of(forked[0].command))


if __name__ == "__main__":
    # What is forked finds the room in the module of this name.
    import_module("ringlight.testbed.forkserver").main()
