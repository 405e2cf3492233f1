"""The interconnects of a fabric as a kind of planes."""

from ringlight.fabric.planes.kinds import PlaneKind

INTERCONNECT = PlaneKind(
    carrier="simulation.whole_carrier:WholeCarrier",
    planes="wholes.whole_plane:wholes",
    provider="light.divided:DividedProvider",
)
