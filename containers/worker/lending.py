"""Sends memory over TCP without copying it: its pages go through a pipe into the socket (splice(2)).

Between two processes of one machine a byte is copied twice, from the sender and to the receiver, and that is
most of what an all-reduce costs the processors there. Memory that is lent is copied once, by the receiver. So
it must stay as it is until the receiver has it: ``fabric.collectives.lendable`` returns which transfers an
all-reduce itself does not overwrite sooner, and the receipts of ``transport`` show when the receiver has the
memory.

A segment that TCP sends again may by then hold other bytes, but only such as the receiver has already,
which its TCP throws away.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket

#: Room of a connection's pipe: the most that Linux grants to anybody, and 64 times to one user, who is the
#: same in all containers.
PIPE_BYTES = 1024 * 1024


class _Piece(ctypes.Structure):
    """struct iovec of <sys/uio.h>."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.vmsplice.argtypes = [
    ctypes.c_int,
    ctypes.POINTER(_Piece),
    ctypes.c_size_t,
    ctypes.c_uint,
]
_libc.vmsplice.restype = ctypes.c_ssize_t


class Lender:
    """Lends memory to the peer of one non-blocking stream connection, which stays the caller's.

    ``held``: bytes lent that wait in the pipe for room in the socket. Raises OSError when this kernel, or
    what it grants this user, does not allow it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.held = 0
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.fcntl(self._write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            probe = ctypes.create_string_buffer(1)
            self._take(ctypes.addressof(probe), 1)
            os.read(self._read, 1)
        except OSError:
            self.close()
            raise

    def send(self, address: int, count: int) -> int:
        """Lend up to ``count`` bytes from ``address`` on. Return how many were taken, including the ``held``
        bytes.

        Fewer bytes, or none, are taken if the socket has no room. Raises OSError of the connection.
        """
        taken = 0
        while True:
            self.flush()
            if self.held or taken == count:
                return taken
            self.held = self._take(address + taken, min(count - taken, PIPE_BYTES))
            taken += self.held

    def flush(self) -> None:
        """Pass on what is held, as far as the socket has room. Raises OSError of the connection."""
        while self.held:
            try:
                self.held -= os.splice(
                    self._read,
                    self._connection.fileno(),
                    self.held,
                    flags=os.SPLICE_F_NONBLOCK,
                )
            except BlockingIOError:
                return

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)

    def _take(self, address: int, count: int) -> int:
        taken = int(
            _libc.vmsplice(self._write, _Piece(address, count), 1, os.SPLICE_F_NONBLOCK)
        )
        if taken < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return taken


def lender_for(connection: socket.socket) -> Lender | None:
    """Return a lender, or None if memory cannot be lent. Then everything is copied, which always works."""
    try:
        return Lender(connection)
    except OSError:
        return None
