"""A worker that stays: each attempt of its job runs in a process of its own, forked from one that is ready.

A job that continues after a loss starts all its ranks again. Most of the time is needed to start a container
and an interpreter, to import numpy and to read the training set. A resident has done that once. The server
agent sends it orders over a socket, each a word that it answers with ``DONE``: ``stop`` ends the present
attempt, ``run NAME`` starts one in that subdirectory. A spare's resident waits for its first order.

The end of an attempt is the resident's own end, except if a peer was lost: then an order may follow.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
from pathlib import Path

#: In a resident's directory: the agent's socket, and the directory of an attempt that needs no order.
ORDERS, FIRST = "orders", "first"
DONE = b"done"
STOP, RUN = "stop", "run "
#: Longest wait for an order once a peer was lost, seconds.
STAY_S = 3.0
LOST_PEER = 3
_LONGEST = 64
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def reside(directory: Path) -> Path | int:
    """Carry out orders. Return the exit code, or, in a process that was forked for an attempt, the attempt's
    directory.

    Raises OSError if there is no one to give orders.
    """
    _prepare()
    attempt: _Attempt | None = None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as orders:
        orders.connect(str(directory / ORDERS))
        first = directory / FIRST
        if first.is_dir() and (attempt := _begin()) is None:
            return first
        code, wait_s = 0, None
        while True:
            watched: list[socket.socket | int] = [orders]
            if attempt is not None:
                watched.append(attempt.pidfd)
            ready, _, _ = select.select(watched, [], [], wait_s)
            if orders in ready:
                if not (order := _heard(orders)):
                    # The agent that gave orders is gone: the present attempt is the last.
                    return code if attempt is None else _as_it_ended(attempt.end())
                if attempt is not None:
                    attempt.stop()
                code, wait_s, attempt = 0, None, None
                if order.startswith(RUN) and (attempt := _begin()) is None:
                    return directory / order.removeprefix(RUN)
                orders.send(DONE)
            elif attempt is None:
                return code
            else:
                code, attempt = attempt.end(), None
                if code != LOST_PEER:
                    return _as_it_ended(code)
                wait_s = STAY_S


def _heard(orders: socket.socket) -> str:
    """Return the next order; empty if there will be no more."""
    try:
        return orders.recv(_LONGEST).decode()
    except ConnectionResetError:
        return ""


class _Attempt:
    """A process that was forked."""

    def __init__(self, pid: int) -> None:
        self.pid, self.pidfd = pid, os.pidfd_open(pid)

    def end(self) -> int:
        """Wait for the end of the process. Return its exit code, or minus the number of the signal that ended
        it.
        """
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.pidfd)
        return code

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.end()


def _begin() -> _Attempt | None:
    """Fork. Return the child in the parent, and None in the child."""
    pid = os.fork()
    if pid:
        return _Attempt(pid)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return None


def _prepare() -> None:
    """Have at hand what every attempt needs."""
    from ringlight.containers.worker.gradients import train  # noqa: F401
    from ringlight.containers.worker.model import digits

    digits()


def _as_it_ended(code: int) -> int:
    """Return an exit code, or end this process by the signal that ended the attempt.

    The first process of a container cannot send such a signal to itself. Then 128 plus the signal's number is
    returned.
    """
    if code >= 0:
        return code
    if os.getpid() != 1:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return 128 - code
