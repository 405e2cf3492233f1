"""Parting: everybody ends, in whatever order each one thinks of its peers."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

from containers.worker.rendezvous import part


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
