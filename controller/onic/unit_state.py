"""State that all ports of one O-NIC's control unit share."""

from __future__ import annotations

from collections.abc import Mapping

from ringlight.controller.onic.control_messages import DENY, Message
from ringlight.controller.onic.effects import Effect, Flow, Peer, Send
from ringlight.controller.onic.lease_times import Times
from ringlight.controller.onic.reach import Reach


class UnitState:
    """State beside that of transmitters and receivers.

    ``epoch``: this life of the O-NIC. ``epochs``: the lives of its peers. ``reach``: how to reach each peer
    of its job. ``flows``: port of each flow that has not ended. ``seq``: number of the newest flow that had a
    transmitter. ``quiet_s``: no receiver is granted before that time.
    """

    __slots__ = (
        "counts",
        "epoch",
        "epochs",
        "flows",
        "quiet_s",
        "reach",
        "seq",
        "times",
    )

    def __init__(self, epoch: int, times: Times, quiet_s: float) -> None:
        self.epoch = epoch
        self.times = times
        self.counts = dict.fromkeys(
            ("grants", "denies", "expired", "stale", "lost", "failed", "done"), 0
        )
        self.seq = 0
        self.quiet_s = quiet_s
        self.reach: Mapping[Peer, Reach] = {}
        self.epochs: dict[Peer, int] = {}
        self.flows: dict[Flow, int] = {}

    def deny(
        self, peer: Peer, about: Message, reason: int, retry_s: float, out: list[Effect]
    ) -> None:
        """Deny what a message asks for. ``retry_s``: when it is worth another try, seconds."""
        self.counts["denies"] += 1
        answer = Message(
            DENY,
            about.port,
            self.epoch,
            about.flow_epoch,
            about.seq,
            about.stamp_s,
            retry_s,
            reason,
        )
        out.append(Send(peer, answer))
