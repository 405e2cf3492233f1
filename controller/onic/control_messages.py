"""Messages between the control units of O-NICs, as values."""

from __future__ import annotations

from typing import NamedTuple

REQUEST, GRANT, QUEUED, DENY, CONFIRM, RELEASE, RELEASED, RENEW, RENEWED = range(1, 10)
KINDS = {
    REQUEST: "request",
    GRANT: "grant",
    QUEUED: "queued",
    DENY: "deny",
    CONFIRM: "confirm",
    RELEASE: "release",
    RELEASED: "released",
    RENEW: "renew",
    RENEWED: "renewed",
}
#: Kinds of message that only the source of a flow sends, and only its destination answers.
FROM_SOURCE = frozenset({REQUEST, CONFIRM, RELEASE, RENEW})

NO_MAP, QUEUE_FULL, UNKNOWN_GRANT = 1, 2, 3
REASONS = {
    NO_MAP: "the receiver's wavelength map does not have this O-NIC",
    QUEUE_FULL: "the receiver's queue is full",
    UNKNOWN_GRANT: "the receiver no longer knows the grant",
}


class Message(NamedTuple):
    """Control message.

    ``epoch``: the sender's epoch. ``flow_epoch`` and ``seq``: the flow, numbered by its source in that epoch
    of the source. ``stamp_s``: the source's clock when it sent the REQUEST or RENEW that this message
    answers; the destination only echoes it. ``value_s``: lease (GRANT, RENEWED) or time to retry (DENY),
    seconds. ``detail``: number of requests ahead (QUEUED) or reason (DENY).
    """

    kind: int
    port: int
    epoch: int
    flow_epoch: int
    seq: int
    stamp_s: float = 0.0
    value_s: float = 0.0
    detail: int = 0
