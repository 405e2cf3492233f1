"""The averagers of a fabric as a kind of planes, which jobs get by their collective."""

from ringlight.fabric.planes.kinds import PlaneKind

AVERAGERS = PlaneKind(carrier="averager_carrier:AveragerCarrier")
