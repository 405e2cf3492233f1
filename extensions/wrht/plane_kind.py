"""The rings of a fabric as a kind of planes."""

from ringlight.fabric.planes.kinds import PlaneKind

RING = PlaneKind(
    carrier="carrier:RingCarrier",
    planes="ring_plane:rings",
    provider="provider:RingProvider",
)
