"""Closed forms of what TCP makes of frames that are lost, and of links that were dark."""

from __future__ import annotations

import math


def reno_bps(
    loss: float, rtt_s: float, time_out_s: float, payload_bytes: float
) -> float:
    """Return the most that one connection of TCP Reno carries, bits of payload per second.

    It is infinite without loss, and 0 if all is lost. ``loss``: share of segments that are lost,
    ``payload_bytes``: of a segment. Source: Padhye, Firoiu, Towsley and Kurose, "Modeling TCP Throughput"
    (SIGCOMM 1998), the approximate form, without the limit by the receiver's window, two segments for each
    acknowledgement.
    """
    if loss <= 0:
        return math.inf
    if loss >= 1:
        return 0.0
    each = 2.0
    halving_s = rtt_s * math.sqrt(2 * each * loss / 3)
    waiting_s = (
        time_out_s
        * min(1.0, 3 * math.sqrt(3 * each * loss / 8))
        * loss
        * (1 + 32 * loss**2)
    )
    return 8 * payload_bytes / (halving_s + waiting_s)


#: How long Linux holds back the acknowledgement of one segment (TCP_DELACK_MIN; RFC 1122 allows 0.5 s).
DELAYED_ACK_S = 0.04


def resumed_s(down_s: float, time_out_s: float) -> float:
    """Return when TCP goes on over a link that was down for ``down_s`` seconds.

    The result is in seconds from when the link went down. TCP sends one segment again after the time-out,
    then after twice as long each time (RFC 6298, 5.5), and the acknowledgement of the first that arrives is
    delayed.
    """
    again_s = time_out_s
    while again_s < down_s:
        again_s = 2 * again_s + time_out_s
    return again_s + DELAYED_ACK_S
