"""Effects that an O-NIC's control unit wants, in the order in which it must be carried out."""

from __future__ import annotations

from typing import Any, NamedTuple

from ringlight.controller.onic.control_messages import Message

#: Whatever the caller names peers and flows by, if it is hashable: addresses, numbers, texts.
Peer = Any
Flow = Any


class Send(NamedTuple):
    peer: Peer
    message: Message


class Tune(NamedTuple):
    """Tune the laser and answer with :meth:`Onic.tuned`; it goes dark by itself at ``until_s``."""

    port: int
    wavelength: int
    until_s: float


class Extend(NamedTuple):
    """The light that is on may stay until ``until_s``; it must not flicker."""

    port: int
    wavelength: int
    until_s: float


class Dark(NamedTuple):
    port: int


class FlowLit(NamedTuple):
    """The flow may send."""

    flow: Flow


class Closed(NamedTuple):
    """The flow was closed as asked; its light, if any, is out."""

    flow: Flow


class Failed(NamedTuple):
    """The flow never had light and is over. ``retry_after_s``: when it is worth another try, if it is."""

    flow: Flow
    peer: Peer
    reason: str
    retry_after_s: float | None


class Lost(NamedTuple):
    """Effect: the flow lost its light before it was closed, and has ended. The sender must open a new one."""

    flow: Flow
    peer: Peer
    reason: str


class Finished(NamedTuple):
    """Effect: times in the life of a flow that had light, seconds, after the receiver has confirmed its
    release.

    ``released_s``: None if the receiver never answered again. ``waited``: the flow was in a queue, here or at
    the receiver.
    """

    flow: Flow
    peer: Peer
    port: int
    wavelength: int
    opened_s: float
    request_s: float
    grant_s: float
    lit_s: float
    close_s: float
    released_s: float | None
    waited: bool


Effect = Send | Tune | Extend | Dark | FlowLit | Closed | Failed | Lost | Finished
