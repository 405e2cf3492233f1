"""The grids of a fabric as a kind of planes."""

from ringlight.fabric.planes.kinds import PlaneKind

GRID = PlaneKind(
    carrier="carrier:GridCarrier",
    planes="grid_plane:grids",
    provider="arbiter:GridProvider",
)
