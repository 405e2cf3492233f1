"""Connecting with an O-NIC, and parting: everybody ends, in whatever order each one thinks of its peers."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

from containers.worker.rendezvous import accept, connect, part
from containers.worker.spec import WorkerSpec


def test_ranks_on_a_ring_part_though_each_thinks_of_the_next_one_first() -> None:
    ranks = 4
    pairs = [socket.socketpair() for _ in range(ranks)]
    try:
        # Rank r has one end of pair r, to the next rank, and the other end of the pair before.
        links = [{(r + 1) % ranks: pairs[r][0], (r - 1) % ranks: pairs[r - 1][1]} for r in range(ranks)]
        with ThreadPoolExecutor(ranks) as pool:
            for parting in [pool.submit(part, link, 5.0) for link in links]:
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
            return WorkerSpec("job", rank, len(known), known, port, onic="/onic/flow.sock")

        mine, stranger = spec(2), spec(0, ("127.77.70.9", "127.77.70.8", peers[2]))
        for own in (spec(1), stranger):
            deadline = time.monotonic() + 5
            with connect(own, 2, deadline) as connection:
                accepted = accept(listener, mine, deadline)
                if own is stranger:
                    assert accepted is None
                    continue
                assert accepted is not None
                rank, peer = accepted
                with peer:
                    assert rank == 1
                    peer.setblocking(False)
                    connection.shutdown(socket.SHUT_WR)
                    assert peer.recv(1) == b""
