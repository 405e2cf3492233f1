"""The light of O-NICs as it is now: what leads from one GPU to another, and echoes over it.

Only payload of TCP travels as light, and light goes one way. So an echo is a few bytes of payload, and what
comes back is their acknowledgement, which takes the control network. That it was light is read off the
counters of the O-NIC that sent it.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.attached import Attached, NodePlace
from ringlight.testbed.emulation.onic.tables import (
    LightTable,
    RouteTable,
    Transmitter,
    read_counters,
    read_traffic,
)
from ringlight.testbed.lab import LabError

#: Longest wait for light that is given flow by flow, for a connection, for an acknowledgement, seconds.
LIGHT_S, CONNECT_S, ECHO_S = 5.0, 2.0, 1.0
#: Payload of an echo, as much as ping's.
ECHO_BYTES = 56
_LOOK_S = 50e-6


class NoLight(LabError):
    """No light leads from one GPU to another now; one line, with what makes some."""


@dataclass(frozen=True)
class EchoLight:
    """Transmitters of the O-NIC of GPU ``source`` that lead to GPU ``target`` now.

    ``agent``: the Unix socket at which light is requested, flow by flow; None if light is permanently there.
    """

    source: str
    target: str
    transmitters: tuple[Transmitter, ...]
    agent: Path | None = None


@dataclass(frozen=True)
class Echo:
    """An echo over light. ``rtt_s``: seconds until it was acknowledged, None where it was not.

    ``over``: the light that it took. ``waited_s``: seconds before, for that light.
    """

    rtt_s: float | None
    over: str
    waited_s: float


def light_between(lab: Attached, source: str, target: str) -> EchoLight:
    """Return the light that leads from GPU ``source`` to GPU ``target`` now. Raises NoLight if there is none,
    and LabError if the O-NIC's state cannot be read."""
    onic, ip = lab.fabric.onics[source], lab.fabric.gpus[target].ip
    agent = None
    with _reading(source):
        if onic.standing:
            with closing(LightTable(_pins(lab, source))) as lights:
                standing = lights.read().get(ip)
            transmitters = (
                standing.paths if standing is not None and standing.lit else ()
            )
        elif onic.transmitters == "tunable":
            directory = Path(lab.inventory["onics"][source]["directory"])
            agent = directory / "flow.sock"
            mapped = _wavelength_map(directory / "map.json").get(ip)
            transmitters = (
                ()
                if mapped is None
                else (Transmitter(mapped["port"], mapped["wavelength"]),)
            )
        else:
            with closing(RouteTable(_pins(lab, source))) as routes:
                route = routes.read().get(ip)
            transmitters = () if route is None else (route,)
    if not transmitters:
        raise NoLight(
            f"no light leads from {source} to {target} now; {remedy(lab.fabric, source, target)}"
        )
    return EchoLight(source, target, transmitters, agent)


def remedy(fabric: Fabric, source: str, target: str) -> str:
    """Return a hint how to get light between two GPUs: the command for a job that sets up light and holds
    it."""
    # Here, as it needs numpy, which takes longer to load than all else that a hand in a lab needs.
    from ringlight.fabric.planes.choice import plane_of

    plane = plane_of(fabric, (source,))
    ranks = plane.nodes if plane.whole else (source, target)
    return f"a job makes some and keeps it: ringlight job submit light --ranks {','.join(ranks)} --hold"


def named(fabric: Fabric, source: str, transmitter: Transmitter) -> str:
    """Return a transmitter and the other end of its fibre as text: ``g0:1 λ2 into w0:1``."""
    port = Port(source, transmitter.port)
    colour = "" if transmitter.wavelength is None else f" λ{transmitter.wavelength}"
    return f"{port}{colour} into {fabric.link_at[port].other(port)}"


@contextmanager
def asked_for(lab: Attached, light: EchoLight) -> Iterator[float]:
    """Request the light for the length of the ``with`` block. Yield how long the light took to come, seconds.

    Raises NoLight.
    """
    if light.agent is None:
        yield 0.0
        return
    from ringlight.containers.worker.flows import Flows

    flows = Flows(light.agent)
    try:
        try:
            with flows.light(
                lab.fabric.gpus[light.target].ip, time.monotonic() + LIGHT_S
            ) as flow:
                yield flow.waited_s
        except TimeoutError as error:
            raise NoLight(f"from {light.source} to {light.target}: {error}") from None
    finally:
        flows.shut()


def packets_on(lab: Attached, light: EchoLight) -> dict[Transmitter, int]:
    """Return the number of packets that each transmitter of the light has sent so far. Raises LabError."""
    onic, pins = lab.fabric.onics[light.source], _pins(lab, light.source)
    with _reading(light.source):
        if onic.standing:
            ip, sent = lab.fabric.gpus[light.target].ip, read_traffic(pins).sent_on
            keys = {
                transmitter: (ip, transmitter.port, transmitter.wavelength)
                for transmitter in light.transmitters
            }
            return {
                transmitter: sent[key].packets if key in sent else 0
                for transmitter, key in keys.items()
            }
        by_port = read_counters(pins, onic.ports).light_tx_packets
        return {
            transmitter: by_port[transmitter.port] for transmitter in light.transmitters
        }


def taken(lab: Attached, light: EchoLight, before: Mapping[Transmitter, int]) -> str:
    """Return the transmitters that have sent something since the count ``before``, as text. Raises LabError
    if none has."""
    now = packets_on(lab, light)
    used = [
        named(lab.fabric, light.source, transmitter)
        for transmitter in light.transmitters
        if now[transmitter] > before[transmitter]
    ]
    if not used:
        raise LabError(f"from {light.source} to {light.target}: nothing left as light")
    return ", ".join(used)


def echo(
    lab: Attached, places: Mapping[str, NodePlace], source: str, target: str
) -> Echo:
    """Measure one echo over the current light and return it. Raises NoLight and LabError."""
    light = light_between(lab, source, target)
    with (
        asked_for(lab, light) as waited_s,
        _connection(lab, places, source, target) as (near, far),
    ):
        before = packets_on(lab, light)
        rtt_s = acknowledged_after(near, far)
        return Echo(rtt_s, taken(lab, light, before), waited_s)


def acknowledged_after(near: socket.socket, far: socket.socket) -> float | None:
    """Return the seconds until an echo sent at ``near`` was acknowledged by ``far``, None if no
    acknowledgement came in time."""
    # Else the other end may keep its acknowledgement back, in the hope of an answer that takes it along.
    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    began = time.monotonic()
    near.sendall(bytes(ECHO_BYTES))
    while (now := time.monotonic()) < began + ECHO_S:
        if _unacknowledged(near) == 0:
            return now - began
        time.sleep(_LOOK_S)
    return None


def _unacknowledged(connection: socket.socket) -> int:
    left = bytearray(4)
    fcntl.ioctl(connection, termios.TIOCOUTQ, left)
    return int(struct.unpack("=i", left)[0])


@contextmanager
def _connection(
    lab: Attached, places: Mapping[str, NodePlace], source: str, target: str
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """TCP from one GPU to another, both ends; to open it takes no light. Raises LabError."""
    try:
        with _socket_at(places[target]) as listener, _socket_at(places[source]) as near:
            listener.bind((lab.fabric.gpus[target].ip, 0))
            listener.listen()
            near.connect(listener.getsockname())
            far, _ = listener.accept()
            with far:
                yield near, far
    except OSError as error:
        raise LabError(
            f"from {source} to {target}: {error.strerror or error}"
        ) from None


def _socket_at(place: NodePlace) -> socket.socket:
    """A socket of TCP in a GPU's network. Raises OSError."""
    # Here, as most commands of a lab need no netlink.
    from ringlight.testbed.emulation.kernel.namespaces import in_namespace

    assert place.namespace is not None
    descriptor = os.open(place.namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        made = in_namespace(
            descriptor, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        )
    finally:
        os.close(descriptor)
    made.settimeout(CONNECT_S)
    # What was not acknowledged is not sent again and again after the echo is over.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return made


def _pins(lab: Attached, gpu: str) -> Path:
    return lab.lab.bpf_dir / f"onic-{gpu}"


def _wavelength_map(path: Path) -> Mapping[str, Mapping[str, int]]:
    """Return the latest wavelength map of an O-NIC's agent, by the peers' addresses, empty without a map.
    Raises OSError, ValueError."""
    try:
        peers: Mapping[str, Mapping[str, int]] = json.loads(path.read_bytes())["peers"]
    except FileNotFoundError:
        return {}
    return peers


@contextmanager
def _reading(gpu: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LabError(f"the O-NIC of {gpu} cannot be read: {reason}") from None
