"""Marks control messages apart from payload, by the DSCP of a connection's packets.

Control messages, or *words*, are what ranks say about their transfers: hellos, credits, receipts. Where
light stands, payload waits for it and goes one way. A word may have to go where no light leads, so an O-NIC
sends it over the control network, and knows it by its mark. Other fabrics ignore the mark.
"""

from __future__ import annotations

import socket

#: Type of service with DSCP CS6 (network control).
WORD_TOS = 0xC0


def carry_payload(connection: socket.socket) -> None:
    """Mark the bytes that this end of a TCP connection sends from now on as payload.

    This cannot be reversed: the kernel marks a packet as it leaves, so payload that waits in the socket would
    be marked as words.
    """
    connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0)
