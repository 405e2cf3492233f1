# ruff: noqa: T201
"""Each rank sends some bytes to the next and counts what comes from the one before; it needs only Python."""

import os
import socket
import sys
import time

rank, size, port = (
    int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")
)
addresses = os.environ["RINGLIGHT_ADDRESSES"].split(",")
count = int(sys.argv[1])


def connected(address: str, until: float) -> socket.socket:
    """Who is there first waits for the other to listen."""
    while True:
        try:
            return socket.create_connection((address, port), timeout=5)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


with socket.create_server((addresses[rank], port)) as server:
    server.settimeout(30)
    after = connected(addresses[(rank + 1) % size], time.monotonic() + 30)
    before, _ = server.accept()
    before.settimeout(30)
    sent, got = 0, 0
    while sent < count or got < count:
        if sent < count:
            piece = bytes(min(1 << 14, count - sent))
            after.sendall(piece)
            sent += len(piece)
        if got < count:
            piece = before.recv(1 << 16)
            if not piece:
                sys.exit(f"rank {rank}: {count - got} bytes are missing")
            got += len(piece)
    print(f"rank {rank} of {size} at {addresses[rank]}: sent {sent}, received {got}")
