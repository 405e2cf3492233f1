"""Servers that do collectives as NCCL does, as a kind of planes."""

from ringlight.fabric.planes.kinds import PlaneKind

GPU_SERVERS = PlaneKind(carrier="carrier:ServersCarrier")
