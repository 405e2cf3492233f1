"""Plan the cross-connects that add some circuits and remove others. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ringlight.controller.circuits.change import Target
from ringlight.controller.errors import ConflictError, InvalidError
from ringlight.controller.packets.attachment import circuit_pairs
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import (
    CrossConnects,
    Fabric,
    circuit_cross_connects,
    port_name,
)

_Pair = tuple[Port, Port]


def altered(
    fabric: Fabric,
    cross_connects: CrossConnects,
    add: Iterable[tuple[str, str]],
    remove: Iterable[tuple[str, str]],
) -> dict[str, Target]:
    """Return what the optical switches must carry so that some circuits are added and others removed.

    Ends are names of ports (``g3``, ``tor0:1``). The second end of a circuit to add may be a packet switch:
    then it is the port there to which the first end is lit, or the first free one, after what is removed, that an
    optical switch joins to the first end.
    A circuit to add takes the place of the one at its first end. Raises InvalidError for an end or a circuit
    that this fabric cannot have, ConflictError for a circuit that is not lit or a port that is in use.
    """
    present = circuit_pairs(fabric, cross_connects)
    add = list(add)
    nears = [
        _plugged(fabric, first, f"add[{index}]") for index, (first, _) in enumerate(add)
    ]
    gone = {_lit(present, names, index) for index, names in enumerate(remove)}
    gone |= {pair for pair in present if not set(nears).isdisjoint(pair)}
    used = {port for pair in present if pair not in gone for port in pair}
    opposite = {port: other for pair in present for port, other in (pair, pair[::-1])}
    new: list[_Pair] = []
    for index, (near, (_, second)) in enumerate(zip(nears, add, strict=True)):
        place = f"add[{index}]"
        far = _far_end(fabric, near, second, used, opposite.get(near), place)
        if far in used:
            raise ConflictError(f"{place}: {second} is in use")
        used.add(far)
        new.append((near, far))
    try:
        removed = circuit_cross_connects(fabric, gone)
        added = circuit_cross_connects(fabric, new)
    except ValueError as error:
        raise InvalidError(str(error)) from error
    targets = dict[str, Target]()
    for name in added:
        # An added cross-connect takes the place of what its ingress has.
        delete = {xc.ingress for xc in removed[name]}
        delete -= {xc.ingress for xc in added[name]}
        if delete or added[name]:
            targets[name] = Target(
                tuple(sorted(added[name])), delete=tuple(sorted(delete))
            )
    return targets


def _port(name: str, place: str) -> Port:
    try:
        return Port.parse(name)
    except ValueError as error:
        raise InvalidError(f"{place}: {error}") from error


def _plugged(fabric: Fabric, name: str, place: str) -> Port:
    port = _port(name, place)
    if port not in fabric.link_at:
        raise InvalidError(f"{place}: this fabric has no port {name}")
    return port


def _lit(present: Collection[_Pair], names: tuple[str, str], index: int) -> _Pair:
    """Return the lit circuit with these ends, in whichever order."""
    place = f"remove[{index}]"
    ends = {_port(name, place) for name in names}
    for pair in present:
        if set(pair) == ends:
            return pair
    raise ConflictError(f"{place}: there is no circuit from {names[0]} to {names[1]}")


def _far_end(
    fabric: Fabric,
    near: Port,
    name: str,
    used: Collection[Port],
    present: Port | None,
    place: str,
) -> Port:
    """Return the port that a name stands for: the port itself, or a free one of a packet switch.

    ``present``: the port to which ``near`` is lit; it is the first choice.
    """
    if name not in fabric.packet_switches:
        far = _plugged(fabric, name, place)
        try:
            circuit_cross_connects(fabric, [(near, far)])
        except ValueError as error:
            raise InvalidError(f"{place}: {error}") from error
        return far
    if present is not None and present.node == name and present not in used:
        return present
    for port in _joined(fabric, near, name):
        if port not in used:
            return port
    raise ConflictError(
        f"{place}: {name} has no free port for {port_name(fabric, near)}"
    )


def _joined(fabric: Fabric, near: Port, switch: str) -> Iterator[Port]:
    """Yield the ports of a packet switch that an optical switch joins to a port, by number."""
    for port in sorted(port for port in fabric.link_at if port.node == switch):
        try:
            circuit_cross_connects(fabric, [(near, port)])
        except ValueError:
            continue
        yield port
