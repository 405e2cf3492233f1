"""Divide a schedule among the connections of one rank: what it sends and receives, in which order."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ringlight.containers.worker.elements import Elements
from ringlight.containers.worker.peer_link import PeerLink
from ringlight.containers.worker.transfers import Burst, Receive, Send
from ringlight.fabric.collectives import Schedule, Transfer, chunk_bounds, lendable

#: Shorter transfers are copied. Four ranks on loopback, lent over copied: with chunks of 256 KiB 0.9 times as
#: fast, of 1 MiB the same, of 16 MiB 1.2 times.
LEND_BYTES = 1024 * 1024
READY = b"\5"


def partners(schedule: Schedule, rank: int) -> tuple[set[int], set[int]]:
    """Return the ranks to which ``rank`` transfers anything, and the ranks that transfer anything to it."""
    to = {t.destination for t in schedule.transfers if t.source == rank}
    return to - {rank}, {
        t.source for t in schedule.transfers if t.destination == rank
    } - {rank}


def links_for(
    schedule: Schedule,
    rank: int,
    connections: Mapping[int, socket.socket],
    into: Mapping[int, socket.socket],
    bounds: Sequence[tuple[int, int]],
    item: int,
    *,
    by_flow: bool,
) -> list[PeerLink]:
    """Return the links of ``rank``, each with its transfers in their order.

    ``connections``: to send payload over, by peer; ``into``: to receive it on. ``bounds``: of each chunk in
    this rank's vector, bytes. ``item``: bytes that are never added separately. ``by_flow``: each burst is
    sent under light of its own. Raises ValueError when a connection is missing.
    """
    to, from_ = partners(schedule, rank)
    missing = (to - connections.keys()) | (from_ - into.keys())
    if missing:
        raise ValueError(f"rank {rank} has no connection to ranks {sorted(missing)}")
    # Each begins with the rank behind it: with the same one first, all would send to that at once.
    peers = sorted(to | from_, key=lambda peer: (peer - rank) % schedule.world_size)
    link_to = {peer: PeerLink(peer, connections[peer]) for peer in peers if peer in to}
    link_from = {
        peer: link_to[peer]
        if peer in to and connections[peer] is into[peer]
        else PeerLink(peer, into[peer])
        for peer in peers
        if peer in from_
    }
    _assign(schedule, rank, bounds, item, link_to, link_from, by_flow)
    return list(dict.fromkeys([*link_to.values(), *link_from.values()]))


def chunks_in_bytes(
    length: int, chunks: int, offsets: Sequence[int] | None, elements: Elements
) -> list[tuple[int, int]]:
    """Return where each chunk of a vector of ``length`` elements begins and ends, bytes.

    ``offsets``: as of ``fabric.collectives.chunk_bounds``. Raises ValueError when they do not fit, or cut
    items.
    """
    size, item = elements.kind.itemsize, elements.item_bytes
    divided = chunk_bounds(length, chunks, offsets)
    bounds = [(a * size, b * size) for a, b in divided]
    if any(start % item for start, _ in bounds) or bounds[-1][1] % item:
        raise ValueError(
            f"chunks that cut items of {elements.together} elements: {divided}"
        )
    return bounds


def _assign(
    schedule: Schedule,
    rank: int,
    bounds: Sequence[tuple[int, int]],
    item: int,
    link_to: Mapping[int, PeerLink],
    link_from: Mapping[int, PeerLink],
    by_flow: bool,
) -> None:
    """Give the links their transfers: for payload to each peer, and from it."""
    steps = defaultdict(list)
    # A receipt would need light of its own.
    lent = [False] * len(schedule.transfers) if by_flow else lendable(schedule)
    for transfer, may_lend in zip(schedule.transfers, lent, strict=True):
        if rank in (transfer.source, transfer.destination):
            steps[transfer.step].append((transfer, may_lend))
    last_receive: dict[int, Receive] = {}
    unguarded: dict[int, list[Send]] = defaultdict(list)
    for step in sorted(steps):
        # A send takes what its rank had before the step: so all sends of the step come first.
        sends_before = {peer: len(link.sends) for peer, link in link_to.items()}
        awaits: dict[int, tuple[Receive, ...]] = {}
        if schedule.step_by_step and not by_flow:
            full = [
                t for t, _ in steps[step] if bounds[t.chunk][0] < bounds[t.chunk][1]
            ]
            awaits = _make_ready(link_to, link_from, rank, full)
        for transfer, may_lend in steps[step]:
            start, end = bounds[transfer.chunk]
            if transfer.source == rank and start < end:
                lend = may_lend and end - start >= LEND_BYTES
                needs = awaits.get(transfer.destination, ())
                send = Send(start, end, last_receive.get(transfer.chunk), needs, lend)
                link_to[transfer.destination].sends.append(send)
                unguarded[transfer.chunk].append(send)
        if by_flow:
            for peer, link in link_to.items():
                if sends := link.sends[sends_before[peer] :]:
                    applied = tuple(
                        send.after for send in sends if send.after is not None
                    )
                    link.bursts.append(Burst(step, len(link.sends), applied))
        for transfer, _ in steps[step]:
            start, end = bounds[transfer.chunk]
            if transfer.destination == rank and start < end:
                before = last_receive.get(transfer.chunk)
                receive = Receive(start, end, transfer.op == "reduce", before, item)
                receive.before = unguarded.pop(transfer.chunk, [])
                link_from[transfer.source].receives.append(receive)
                last_receive[transfer.chunk] = receive


def _make_ready(
    link_to: Mapping[int, PeerLink],
    link_from: Mapping[int, PeerLink],
    rank: int,
    transfers: Sequence[Transfer],
) -> dict[int, tuple[Receive, ...]]:
    """Add the READY words of a step with these ``transfers``. Return the receives that the sends to each
    peer await.
    """
    # Those of a connection are applied in order, so its last one stands for all.
    links = dict.fromkeys([*link_to.values(), *link_from.values()])
    so_far = tuple(link.receives[-1] for link in links if link.receives)
    for peer in sorted({t.source for t in transfers if t.destination == rank}):
        link_from[peer].sends.append(Send(0, len(READY), None, so_far, is_word=True))
    awaits = {}
    for peer in sorted({t.destination for t in transfers if t.source == rank}):
        link_to[peer].receives.append(Receive(0, len(READY), False, None, is_word=True))
        awaits[peer] = (*so_far, link_to[peer].receives[-1])
    return awaits
