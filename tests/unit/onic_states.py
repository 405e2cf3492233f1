"""States of the O-NIC's control unit as values that can be compared, counted and gone back to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlight.controller.onic.effects import Peer
from ringlight.controller.onic.lease_times import Times
from ringlight.controller.onic.protocol import Onic
from ringlight.controller.onic.reach import Reach
from ringlight.controller.onic.receiver import _Grant, _Waiting
from ringlight.controller.onic.transmitter import ASKING, _Leaving, _Outgoing


def freeze(onic: Onic, now_s: float) -> tuple[Any, ...]:
    """All that decides future behaviour (but the map), with times relative to ``now_s``; hashable.

    Times that can no longer make a difference are set to the last value that cannot, so that states which
    behave alike are equal.
    """
    oldest_s = -(onic.times.lease_s + onic.times.guard_s)

    def ahead(time_s: float) -> float:
        return max(0.0, time_s - now_s)

    def past(time_s: float) -> float:
        return max(oldest_s, time_s - now_s)

    ports = []
    for tx, rx in zip(onic._tx, onic._rx, strict=True):
        active, grant = tx.active, rx.grant
        ports.append(
            (
                tuple((flow, peer, wavelength) for flow, peer, wavelength, _ in tx.queue),
                None
                if active is None
                else (
                    active.flow, active.peer, active.wavelength, active.seq, active.phase,
                    ahead(active.deadline_s), active.interval_s,
                    ahead(active.give_up_s) if active.phase == ASKING else 0.0,
                    ahead(active.until_s) if active.phase != ASKING else 0.0, active.confirmed,
                ),
                tuple(
                    (seq, one.peer, ahead(one.deadline_s), one.interval_s, ahead(one.give_up_s))
                    for seq, one in sorted(tx.leaving.items())
                ),
                None
                if grant is None
                else (
                    grant.source, grant.seq, past(grant.stamp_s), ahead(grant.until_s), grant.confirmed,
                    0.0 if grant.confirmed else ahead(grant.deadline_s),
                    0.0 if grant.confirmed else grant.interval_s,
                ),
                tuple(
                    (peer, one.seq, past(one.stamp_s), past(one.heard_s))
                    for peer, one in rx.queue.items()
                ),
                tuple(sorted(rx.done.items())),
            )
        )  # fmt: skip
    return (
        onic.epoch,
        onic._unit.seq,
        ahead(onic._unit.quiet_s),
        tuple(sorted(onic._unit.epochs.items())),
        tuple(ports),
    )


def thaw(
    frozen: tuple[Any, ...],
    times: Times,
    reach: Mapping[Peer, Reach],
    now_s: float = 0.0,
    kind: type[Onic] = Onic,
) -> Onic:
    """The control unit that :func:`freeze` was asked of, at ``now_s``, but for its records' times."""
    epoch, seq, quiet_s, epochs, ports = frozen
    onic = kind(epoch, times, now_s, ports=len(ports), quarantine=False)
    unit = onic._unit
    unit.seq, unit.quiet_s, unit.reach = seq, now_s + quiet_s, dict(reach)
    unit.epochs.update(epochs)
    for port, (queue, active, leaving, grant, waiting, done) in enumerate(ports):
        tx, rx = onic._tx[port], onic._rx[port]
        tx.queue.extend((*entry, now_s) for entry in queue)
        unit.flows.update((entry[0], port) for entry in queue)
        if active is not None:
            (
                flow,
                peer,
                wavelength,
                number,
                phase,
                deadline_s,
                interval_s,
                give_up_s,
                until_s,
                sure,
            ) = active
            unit.flows[flow] = port
            tx.active = _Outgoing(
                flow, peer, wavelength, number, phase, now_s + deadline_s, interval_s,
                now_s + give_up_s, now_s + until_s, now_s, now_s, False, confirmed=sure,
            )  # fmt: skip
        for number, peer, deadline_s, interval_s, give_up_s in leaving:
            tx.leaving[number] = _Leaving(
                peer, now_s + deadline_s, interval_s, now_s + give_up_s, None
            )
        if grant is not None:
            source, number, stamp_s, until_s, confirmed, deadline_s, interval_s = grant
            rx.grant = _Grant(
                source, number, now_s + stamp_s, now_s + until_s, confirmed,
                now_s + deadline_s, interval_s,
            )  # fmt: skip
        for peer, number, stamp_s, heard_s in waiting:
            rx.queue[peer] = _Waiting(number, now_s + stamp_s, now_s + heard_s)
        rx.done.update(done)
    return onic
