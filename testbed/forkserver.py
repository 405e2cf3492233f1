"""A fork server: forks a lab's Python processes from one that has imported what they need.

A process then starts in some milliseconds, in place of 0.1 s (an optical switch) to 1 s (a testbed). It has
its own session, standard streams, environment, arguments and network namespace, as if it had been executed,
and ``/proc`` shows them, so that labs find it by their label. It is the server's child: the server takes its
exit code and passes it on. If no server answers, :func:`start_process` executes the command.

A server of a process that was forked itself is forked from that process, and imports nothing again.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import resource
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from ringlight import IMPORT_PATH

#: Environment variable with the path of the server's socket: who starts a process has it forked there.
SOCKET = "RINGLIGHT_FORKSERVER"

#: How the folders of sockets of servers that last as long as a command begin.
_FOLDER = "ringlight-forks-"
#: Longest request, bytes; of the server's own arguments and environment, whose place those of others take.
_LONGEST = 1 << 15
_ANSWER_S = 60.0
#: Exit code that is told of a process whose server has ended before it.
_UNKNOWN = 255
_PR_SET_PDEATHSIG, _PR_SET_MM, _PR_SET_MM_MAP = 1, 35, 14
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sbrk.restype = ctypes.c_void_p


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
        _readable(self._connection.fileno(), _ANSWER_S)
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
    told: bool = True,
) -> Process:
    """Start a process in a session of its own, in the network namespace of the calling thread. Return the
    process.

    ``environment`` may name a server (:data:`SOCKET`), which forks what ``python -m`` would execute.
    ``output`` takes the process's output, unless there is another file for ``errors``. ``follow``: signal
    that the process gets when its starter ends. ``user``: its user id, without any privilege and unable to
    gain one. Such a process does not learn of the server. ``told``: whether it may use the server itself.
    Raises OSError.
    """
    path = environment.get(SOCKET)
    if user is not None or not told:
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


def pidfd_of(process: Process) -> int:
    """Return a descriptor of a process, for the caller to close. Raises OSError."""
    return (
        process.pidfd() if isinstance(process, Forked) else os.pidfd_open(process.pid)
    )


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
            room = "-" * _LONGEST
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
        connection.settimeout(_ANSWER_S)
        connection.connect(path)
        connection.send(json.dumps(modules).encode())


# -- asking for a process


@dataclass(frozen=True)
class _Request:
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
    request = _Request(
        list(command),
        dict(environment),
        str(directory),
        int(follow or 0),
        _mounts(),
        resource.getrlimit(resource.RLIMIT_NOFILE),
        user,
    )
    message = json.dumps(asdict(request)).encode()
    if len(message) > _LONGEST:
        raise _UnableError
    with ExitStack() as undo:
        connection = undo.enter_context(
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        undo.callback(os.close, namespace)
        connection.settimeout(_ANSWER_S)
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


def _mounts() -> str:
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
_Forked = tuple[_Request, list[int]]


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
    message, descriptors, _, _ = socket.recv_fds(connection, _LONGEST, 3)
    try:
        order = json.loads(message)
        if isinstance(order, list):
            _import(order)
            return None
        request = _Request(**order)
        pid = os.fork() if request.mounts == _mounts() else None
    except (OSError, ValueError):
        pid = None
    if pid == 0:
        return request, descriptors
    _close(descriptors)
    if pid is None:
        return None
    child = _Child(pid, os.pidfd_open(pid), connection, request.follow)
    with suppress(OSError):
        socket.send_fds(connection, [str(pid).encode()], [child.pidfd])
    return child


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


# -- a server that is forked

#: Of a process that was forked: where the kernel shows its arguments.
_own_room: _Room | None = None


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


# -- a process that was forked


def _become(request: _Request, descriptors: Sequence[int], room: _Room) -> None:
    """Take over all that an executed process would have of its own."""
    output, errors, namespace = descriptors
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, place in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(source, place)
    _reopen_streams(unbuffered=bool(request.environment.get("PYTHONUNBUFFERED")))
    # It takes privileges, which nobody needs to stay where he is.
    here = os.stat("/proc/self/ns/net").st_ino == os.fstat(namespace).st_ino
    if not here and _libc.setns(namespace, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace")
    _close([nothing, *descriptors])
    resource.setrlimit(resource.RLIMIT_NOFILE, request.files)
    os.chdir(request.directory)
    sys.path[0] = request.directory
    # Emptied first, as the C library has no copies of what it was given at the start.
    os.environ.clear()
    os.environ.update(request.environment)
    room.show(request.command, request.environment)
    if request.user is not None:
        _drop_privileges(request.user)
    # The kernel forgets it when the user changes.
    if request.follow:
        _libc.prctl(_PR_SET_PDEATHSIG, request.follow, 0, 0, 0)


def _drop_privileges(user: int) -> None:
    """Become a user that has no privilege and gains none, as setpriv would. Raises OSError."""
    for capability in range(1 + int(Path("/proc/sys/kernel/cap_last_cap").read_text())):
        _control(_PR_CAPBSET_DROP, capability)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # Root keeps what it has until it gives it up. Version 3 of the call takes two words of each set.
    if _libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)):
        raise OSError(ctypes.get_errno(), "cannot give up capabilities")
    _control(_PR_SET_NO_NEW_PRIVS, 1)
    # Otherwise its files in /proc would be root's, as of a program that has changed its user.
    _control(_PR_SET_DUMPABLE, 1)


def _control(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), *map(ctypes.c_ulong, (0, 0, 0))):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def _reopen_streams(unbuffered: bool) -> None:
    """Make the standard streams again, as the old ones know what the server's were: seekable, for example."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        mode, by_line = (
            ("w", name == "stderr" or unbuffered) if number else ("r", False)
        )
        stream = os.fdopen(
            number,
            mode,
            1 if by_line else -1,
            encoding=old.encoding,
            errors=old.errors,
            closefd=False,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


class _Room:
    """Memory in which the kernel shows a process's arguments and environment.

    It is as long as the arguments and the environment with which the process was executed.
    """

    def __init__(self) -> None:
        fields = (
            Path("/proc/self/stat")
            .read_text(encoding="ascii")
            .rpartition(")")[2]
            .split()
        )
        # As proc(5) numbers them, less three: ends of code and start of the stack, ends of data and start of
        # the heap, ends of arguments, ends of environment.
        self._code, self._data = [*map(int, fields[23:26])], [*map(int, fields[42:45])]
        first, last, first_variable, last_variable = map(int, fields[45:49])
        self._words, self._variables = (first, last), (first_variable, last_variable)

    def show(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Have ``/proc`` show these. If the kernel does not let the ends be moved, empty ones follow."""
        variables = [f"{name}={value}" for name, value in environment.items()]
        ends = [*_put(words, *self._words), *_put(variables, *self._variables)]
        code, code_end, stack = self._code
        layout = (
            code,
            code_end,
            *self._data,
            _libc.sbrk(ctypes.c_long(0)),
            stack,
            *ends,
        )
        # struct prctl_mm_map, with no auxiliary vector and no executable to change
        memory_map = struct.pack("=12QIi", *layout, 0, 0, -1)
        _libc.prctl(
            _PR_SET_MM,
            _PR_SET_MM_MAP,
            memory_map,
            ctypes.c_ulong(len(memory_map)),
            ctypes.c_ulong(0),
        )


def _put(texts: Sequence[str], first: int, last: int) -> tuple[int, int]:
    """Write texts in place of others. Return the first and the last address written."""
    data = b"".join(os.fsencode(text) + b"\0" for text in texts)[: last - first]
    ctypes.memset(first, 0, last - first)
    ctypes.memmove(first, data, len(data))
    return first, first + len(data)


def _execute(command: Sequence[str]) -> None:
    """Do what ``python -m`` does; what the server imported is there, except for the program itself."""
    index = command.index("-m") + 1
    module = command[index]
    sys.argv[:] = command[index:]
    for name in (module, f"{module}.__main__"):
        if "__path__" not in vars(sys.modules.get(name, object)):
            sys.modules.pop(name, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _code_of(command: Sequence[str]) -> int:
    """Execute a command. Return its exit code."""
    try:
        _execute(command)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)  # noqa: T201
            return 1
        return end.code or 0
    return 0


def _end(code: int) -> NoReturn:
    """Exit as the interpreter does, but for taking apart all that was imported.

    That touches every page that this process still shares with the server, so each would be copied: it took
    four times as long as the fork.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


def main() -> None:
    room = _Room()
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


def _serve_all(listener: socket.socket, room: _Room) -> None:
    """Serve until standard input has ended. A process that the server forks does its work, and exits."""
    global _own_room
    if (forked := _serve(listener)) is not None:
        _own_room = room
        _become(*forked, room)
        _end(_code_of(forked[0].command))


if __name__ == "__main__":
    # What is forked finds the room in the module of this name.
    import_module("ringlight.testbed.forkserver").main()
