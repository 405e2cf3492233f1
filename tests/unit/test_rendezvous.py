"""Connecting with an O-NIC, and parting: everybody ends, in whatever order each one thinks of its peers."""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ringlight.containers.worker import rendezvous
from ringlight.containers.worker.peer import PeerLost
from ringlight.containers.worker.rendezvous import accept, connect, part, tune
from ringlight.containers.worker.spec import WorkerSpec


def test_ranks_on_a_ring_part_though_each_thinks_of_the_next_one_first() -> None:
    ranks = 4
    pairs = [socket.socketpair() for _ in range(ranks)]
    try:
        # Rank r has one end of pair r, to the next rank, and the other end of the pair before.
        links = [
            {(r + 1) % ranks: pairs[r][0], (r - 1) % ranks: pairs[r - 1][1]}
            for r in range(ranks)
        ]
        with ThreadPoolExecutor(ranks) as pool:
            for parting in [pool.submit(part, link.items(), 5.0) for link in links]:
                parting.result(10.0)
    finally:
        for pair in pairs:
            for one in pair:
                one.close()


def test_with_an_onic_a_peer_is_known_by_its_address_and_nothing_is_said() -> None:
    peers = ("127.77.70.1", "127.77.70.2", "127.77.70.3")
    with socket.create_server((peers[2], 0)) as listener:
        port = listener.getsockname()[1]

        def spec(rank: int, known: tuple[str, ...] = peers) -> WorkerSpec:
            return WorkerSpec(
                "job", rank, len(known), known, port=port, onic="/onic/flow.sock"
            )

        mine, stranger = spec(2), spec(0, ("127.77.70.9", "127.77.70.8", peers[2]))
        for own in (spec(1), stranger):
            deadline = time.monotonic() + 5
            with connect(own, 2, deadline) as connection:
                accepted = accept(listener, mine, deadline)
                if own is stranger:
                    assert accepted is None
                    continue
                assert accepted is not None
                line, peer = accepted
                with peer:
                    assert line.peer == 1
                    peer.setblocking(False)
                    connection.shutdown(socket.SHUT_WR)
                    assert peer.recv(1) == b""


def test_whoever_is_not_heard_tries_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel sends again after a second. Until a switch has its rules, nobody hears what is sent."""
    attempts = []

    def counted(connection: socket.socket, peer_timeout_s: float) -> None:
        attempts.append(peer_timeout_s)
        tune(connection, peer_timeout_s)

    monkeypatch.setattr(rendezvous, "tune", counted)
    peers = ("127.77.71.1", "127.77.71.2")
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.create_server((peers[1], 0), backlog=0))
        spec = WorkerSpec("job", 0, 2, peers, port=deaf.getsockname()[1])
        # Its queue is full, so the kernel drops whoever comes.
        full = stack.enter_context(socket.socket())
        full.connect(deaf.getsockname())
        with pytest.raises(PeerLost, match="rank 1 lost: no connection"):
            connect(spec, 1, time.monotonic() + 2)
    # With one attempt a second there are two.
    assert len(attempts) >= 4
