"""Reads and checks what a worker is told of its averager."""

from __future__ import annotations

from dataclasses import dataclass

from ringlight.containers.worker.spec import BadSpec, WorkerSpec, fill


@dataclass(frozen=True)
class AveragerPlace:
    """Averager of a rank whose collective is ``optinc``.

    address   of its averager, host:port
    port      its own there, from 0, of ``ports``
    bits      of a number that it sends
    decimals  whether averagers of a first level leave their decimals to the one above (Eq. 10), or drop them
    silence_s seconds that the averager may be silent; longer than the servers may be, so that it can say
              whose fault it is
    """

    address: str
    port: int
    ports: int
    bits: int
    decimals: bool = True
    silence_s: float = 4.5


def place_in(spec: WorkerSpec) -> AveragerPlace:
    """Return the averager of a worker. Raises BadSpec."""
    if spec.place is None:
        raise BadSpec(f"place: collective {spec.collective} needs an averager")
    place: AveragerPlace = fill(AveragerPlace, dict(spec.place), "place.")
    return place


def check(spec: WorkerSpec) -> None:
    """Raise BadSpec for a worker that no averager serves."""
    place = place_in(spec)
    if not (0 <= place.port < place.ports and spec.world_size % place.ports == 0):
        raise BadSpec(
            f"place: port {place.port} of {place.ports} for {spec.world_size} ranks"
        )
    if spec.checkpoint is not None:
        raise BadSpec(
            f"checkpoint: collective {spec.collective} keeps no state to go on from"
        )
