"""Containers as a kind of guests."""

from ringlight.fabric.guests import GuestKind

CONTAINER = GuestKind(
    job="job:ContainerJob", body="request:Container", invite="guests:invite"
)
