"""Network namespaces: made, entered, set up and forgotten.

Work inside another network namespace is done in a short-lived thread that enters it: the namespace of the
calling thread is never changed.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from ringlight.testbed.emulation.kernel.network_errors import (
    NetworkError,
    check,
    failing,
)
from ringlight.testbed.emulation.kernel.shaping import TC_S

T = TypeVar("T")
#: Longest wait for what is done in a thread, seconds: longer than for a process of tc in it. With 256 workers
#: starting beside other work, one waited for more than 10 s.
THREAD_S = 2 * TC_S
NETNS_DIR, _SYSCTLS = Path("/run/netns"), Path("/proc/sys/net")
#: Least, first and greatest buffer of a TCP connection, bytes; of every namespace of a lab. What a receiver
#: has first is the first window that it tells: from 87,380 bytes, the kernel's own, it told two to four
#: frames of 9,000 bytes, and the next ones of a new connection waited behind what went the other way. The
#: first all-reduce of a ring in both directions took 372 ms so, 359 ms with this; 325 ms are simulated.
_TCP_BUFFERS = {
    "ipv4/tcp_rmem": "10240 786432 16777216",
    "ipv4/tcp_wmem": "10240 87380 16777216",
}

_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SHARED = 0x1000, 0x4000, 0x100000
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def in_thread(function: Callable[[], T], timeout_s: float = THREAD_S) -> T:
    """Run ``function`` in a thread of its own and hand back what it returns or raises.

    The thread may change namespaces without harm to others. Raises TimeoutError after ``timeout_s``.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as error:  # noqa: BLE001  (raised again in the caller's thread)
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if failure:
        raise failure[0]
    if not outcome:
        raise TimeoutError(f"the kernel did not answer within {timeout_s:g} s")
    return outcome[0]


def in_namespace(
    descriptor: int, function: Callable[[], T], timeout_s: float = THREAD_S
) -> T:
    """Run ``function`` in a thread inside the network namespace behind an open file descriptor. Return its
    result.

    Raises TimeoutError after ``timeout_s`` seconds.
    """

    def run() -> T:
        check(_libc.setns(descriptor, _CLONE_NEWNET), "entering a network namespace")
        return function()

    return in_thread(run, timeout_s)


def open_namespace(pid: int) -> int:
    """Return a descriptor of a process's network namespace. Raises NetworkError if the process has ended."""
    with failing(f"network namespace of process {pid}"):
        return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def is_own_namespace(descriptor: int | None) -> bool:
    """Return whether the descriptor is of this process's own network namespace, or None."""
    return descriptor is None or os.path.samestat(
        os.fstat(descriptor), os.stat("/proc/self/ns/net")
    )


def _provide_directory() -> None:
    """Make the directory of named namespaces a shared mount, under the lock that ``ip netns add`` takes.

    Else the machine's first ``ip netns add`` would mount it over itself: nobody could remove what was there.
    """
    NETNS_DIR.mkdir(parents=True, exist_ok=True)
    directory, path = os.open(NETNS_DIR, os.O_RDONLY | os.O_CLOEXEC), bytes(NETNS_DIR)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        # It is not to be shared where it is no mount.
        if _libc.mount(b"", path, b"none", _MS_SHARED | _MS_REC, None) < 0:
            check(
                _libc.mount(path, path, b"none", _MS_BIND | _MS_REC, None),
                f"mounting {NETNS_DIR}",
            )
            check(
                _libc.mount(b"", path, b"none", _MS_SHARED | _MS_REC, None),
                f"sharing {NETNS_DIR}",
            )
    finally:
        os.close(directory)


def create_namespace(name: str) -> int:
    """Create a named network namespace like ``ip netns add``. Return a descriptor of it. Raises
    NetworkError."""
    path = NETNS_DIR / name
    with failing(f"network namespace {name}"):
        _provide_directory()
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o444))

    def unshare_and_bind() -> int:
        check(_libc.unshare(_CLONE_NEWNET), f"network namespace {name}")
        here = b"/proc/thread-self/ns/net"
        check(
            _libc.mount(here, str(path).encode(), b"none", _MS_BIND, None),
            f"network namespace {name}",
        )
        _set_here(_TCP_BUFFERS)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    try:
        return in_thread(unshare_and_bind)
    except NetworkError:
        path.unlink(missing_ok=True)
        raise


def delete_namespace(name: str) -> None:
    """Forget a named namespace. It ends with the last process and descriptor in it."""
    path = NETNS_DIR / name
    _libc.umount2(str(path).encode(), _MNT_DETACH)
    with failing(f"network namespace {name}"):
        path.unlink(missing_ok=True)


def configure_namespace(
    congestion_control: str = "reno", reordering: int | None = None
) -> None:
    """Settings of the namespace that the calling thread is in.

    ``reordering``: segments by which one may come late before TCP calls it lost; None for the kernel's own.
    A chosen TCP congestion control (the machine's default may be one that shares a link unevenly), no
    restart from slow start after an idle phase (every compute phase is one), no memory of past
    connections, buffers of a stated size, no IPv6. A worker may take back what it let a peer have under way
    (Linux 6.5 and later; without, a connection's first flight is as long as buffers let it be). Raises
    NetworkError naming the setting.
    """
    settings = {
        "ipv4/tcp_congestion_control": congestion_control,
        "ipv4/tcp_slow_start_after_idle": "0",
        "ipv4/tcp_no_metrics_save": "1",
        **_TCP_BUFFERS,
    }
    if reordering is not None:
        settings["ipv4/tcp_reordering"] = str(reordering)
    for key in (
        "ipv6/conf/all/disable_ipv6",
        "ipv6/conf/default/disable_ipv6",
        "ipv4/tcp_shrink_window",
    ):
        if (_SYSCTLS / key).exists():
            settings[key] = "1"
    _set_here(settings)


def _set_here(settings: Mapping[str, str]) -> None:
    """Below /proc/sys/net, of the namespace that the calling thread is in. Raises NetworkError naming one."""
    for key, value in settings.items():
        with failing(f"net.{key.replace('/', '.')}={value}"):
            (_SYSCTLS / key).write_text(value)
