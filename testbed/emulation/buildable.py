"""Checks of a fabric before anything is built: what this testbed cannot make is known from the file alone."""

from __future__ import annotations

from ringlight.fabric.link_effects import LinkEffect
from ringlight.fabric.parts import Link
from ringlight.fabric.topology import Fabric
from ringlight.fabric.units import format_rate
from ringlight.testbed.emulation.optical.datapath import MAX_SELECTIVE_PORTS
from ringlight.testbed.lab import Lab

#: Rates that a TBF can have, emulated bits per second: its rate is 32 bits of bytes, its bucket
#: 32 bits of 64 ns.
RATE_BOUNDS_BPS = (10e3, 34e9)


def check_fabric(fabric: Fabric) -> None:
    """Raise ValueError naming what this testbed cannot build."""
    for index, link in enumerate(fabric.links):
        if link.a.node in fabric.gpus and link.b.node in fabric.gpus:
            raise ValueError(
                f"links[{index}]: {link.a} and {link.b} are both GPUs; plug each into a switch"
            )
        try:
            for effect in link.effects.values():
                check_effect(fabric, link, effect)
        except ValueError as error:
            raise ValueError(f"links[{index}].{error}") from None
    for switch in fabric.optical_switches.values():
        if switch.wavelengths is not None and switch.size > MAX_SELECTIVE_PORTS:
            raise ValueError(
                f"WSS {switch.name} has {switch.size} ports; at most {MAX_SELECTIVE_PORTS} are emulated"
            )


def check_effect(fabric: Fabric, link: Link, effect: LinkEffect) -> None:
    """Raise ValueError for what this testbed cannot have a link do to frames."""
    onic = next((end for end in (link.a, link.b) if end.node in fabric.onics), None)
    if onic is not None and effect.delay_s:
        raise ValueError(
            f"delay: not on the fibre at {onic}, an O-NIC's: it is delayed before its shaper"
        )


def check_rates(fabric: Fabric, slower: float) -> None:
    """Raise ValueError naming a link whose emulated rate the kernel's token buckets cannot have.

    ``slower``: real bits per second of each emulated one, D·S.
    """
    low, high = RATE_BOUNDS_BPS
    for index, link in enumerate((*fabric.links, *fabric.cables)):
        rate = link.rate_bps / slower
        if not low <= rate <= high:
            way = "raise" if rate > high else "lower"
            where = (
                f"links[{index}]"
                if index < len(fabric.links)
                else f"the link at {link.b}"
            )
            raise ValueError(
                f"{where}: {format_rate(link.rate_bps)} is emulated at {format_rate(rate)}, outside "
                f"{format_rate(low)} to {format_rate(high)}; {way} the time or payload scale"
            )


def check_names(lab: Lab, fabric: Fabric) -> None:
    """Raise ValueError when two things would be called alike, as port 1 of ``a`` and switch ``a-1`` are."""
    switches = [*fabric.packet_switches, *fabric.optical_switches]
    names = {lab.bridge(name): name for name in switches}
    if fabric.onics:
        taken = {"control", *(f"onic-{gpu}" for gpu in fabric.onics)}
        for name in switches:
            if name in taken:
                raise ValueError(
                    f"{name} is the name of a part of a plane of O-NICs; rename the switch"
                )
    for port in fabric.link_at:
        name = lab.interface(port.node, port.number)
        if port.node not in fabric.gpus and names.setdefault(name, str(port)) != str(
            port
        ):
            raise ValueError(
                f"{names[name]} and {port} would both be called {name}; rename a switch"
            )


def building_problem(fabric: Fabric, slower: float) -> str | None:
    """Return why no lab of this fabric can be built, ``key: reason``; None if one can.

    ``slower``: real bits per second of each emulated one, D·S.
    """
    try:
        check_fabric(fabric)
        # Names of all new labs are equally long, so any lab stands for the one that comes.
        check_names(Lab("none"), fabric)
        check_rates(fabric, slower)
    except ValueError as error:
        return str(error)
    return None
