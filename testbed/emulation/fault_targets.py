"""Targets of faults: links, switches, agents, workers and GPUs, by the names that users write."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from ringlight.fabric.control_faults import ControlFaults
from ringlight.fabric.keys import device_words, link_keys
from ringlight.fabric.link_effects import Effects
from ringlight.fabric.parts import Link, Port
from ringlight.fabric.topology import Fabric

#: Such as link, packet switch, optical switch, agent, worker, controller, server agent, gpu, nic, control
#: network, and what an extension calls its devices.
Kind = str
#: At most so many names are told when one is wrong.
_TOLD = 12
_KNOWN = (
    "'link PORT PORT', 'switch NAME', 'agent GPU', 'worker JOB RANK', 'controller', "
    "'server agent', 'gpu NAME', 'nic NAME'"
)


class TargetError(ValueError):
    """Target that does not exist or cannot be asked for; ``status`` is the HTTP status for that."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


#: What can be done, in the order in which messages list it.
_DO = ("cut", "kill", "lose", "disturb", *(keys.do for keys in link_keys()), "restore")


class _FaultRequest(BaseModel):
    """The keys of the core."""

    model_config = ConfigDict(extra="forbid")
    do: Literal[_DO]  # type: ignore[valid-type]
    target: str | tuple[str, str]
    back_after_s: float | None = Field(None, ge=0, le=86400)
    control: ControlFaults | None = None

    @property
    def effects(self) -> Effects:
        """Return what a link is to do to frames, by key."""
        given = {keys.key: getattr(self, keys.key) for keys in link_keys()}
        return {key: effect for key, effect in given.items() if effect is not None}


if TYPE_CHECKING:

    class FaultRequest(_FaultRequest):
        """``target``: as ``_KNOWN``, or a link's two ports by themselves. ``control``: for ``disturb``."""

else:
    FaultRequest = create_model(
        "FaultRequest",
        __base__=_FaultRequest,
        **{keys.key: (keys.request | None, None) for keys in link_keys()},
    )


@dataclass(frozen=True)
class FaultTarget:
    """``text``: one way to write each target; it may be asked for again. ``names``: one, of a worker two.

    ``ports``: those that are held down while the fault is in force.
    """

    kind: Kind
    text: str
    names: tuple[str, ...] = ()
    ports: frozenset[Port] = frozenset()


def read_request(body: Any) -> FaultRequest:
    """Return the fault request in a JSON body. Raises TargetError, one line naming the key."""
    try:
        request = FaultRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "request"
        if key.startswith("target"):
            raise TargetError(
                422, "target: write words such as 'switch tor0' or 'link tor0:5 tor1:5'"
            ) from None
        raise TargetError(
            422, f"{key}: {first['msg'].removeprefix('Value error, ')}"
        ) from None
    if request.do == "restore" and request.back_after_s is not None:
        raise TargetError(422, "back_after_s: what is restored is back at once")
    if (request.do == "disturb") != (request.control is not None):
        need = (
            "is missing"
            if request.do == "disturb"
            else f"does not go with {request.do}"
        )
        raise TargetError(
            422, f"control: {need}; it says how to disturb the control network"
        )
    for keys in link_keys():
        if (request.do == keys.do) != (keys.key in request.effects):
            need = (
                "is missing"
                if request.do == keys.do
                else f"does not go with {request.do}"
            )
            raise TargetError(
                422, f"{keys.key}: {need}; it says what a link does to frames"
            )
    return request


def find_target(fabric: Fabric, request: FaultRequest) -> FaultTarget:
    """Return the target of a request. Raises TargetError, one line that lists the choices."""
    words = (
        request.target.split()
        if isinstance(request.target, str)
        else ["link", *request.target]
    )
    match words:
        case ["link", a, b]:
            allowed = ("cut", *(keys.do for keys in link_keys()), "restore")
            if request.do not in allowed:
                raise TargetError(
                    422, f"do: {request.do}: a link takes {', '.join(allowed)}"
                )
            return _link(fabric, a, b)
        case ["gpu" | "nic" as kind, name]:
            _allow(request, "lose", f"a {kind} can be lost and restored")
            return _gpu(fabric, kind, name)
        case ["switch", name]:
            _allow(request, "kill", "a switch can be killed and restored")
            return _switch(fabric, name)
        case ["agent", name]:
            _allow(request, "kill", "an agent can be killed and restored")
            return _agent(fabric, name)
        case [kind, name] if kind in device_words():
            _allow(request, "kill", f"{kind} {name} can be killed and restored")
            return _process(
                kind,
                name,
                [node for node, its in fabric.devices.items() if its == kind],
            )
        case ["controller"]:
            _allow(request, "kill", "the controller can be killed and restored")
            return FaultTarget("controller", "controller", ("controller",))
        case ["server", "agent"]:
            _allow(request, "kill", "the server agent can be killed")
            return _server_agent(request)
        case ["control", "network"]:
            _allow(
                request, "disturb", "the control network can be disturbed and restored"
            )
            return _control_network(fabric, request.control)
        case ["worker", job, rank] if rank.isascii() and rank.isdigit():
            _allow(request, "kill", "a worker can be killed")
            if request.do == "restore" or request.back_after_s:
                raise TargetError(
                    422, "a killed worker does not come back; its job has failed"
                )
            return FaultTarget(
                "worker", f"worker {job} {int(rank)}", (job, str(int(rank)))
            )
    devices = "".join(f", '{kind} NAME'" for kind in device_words())
    raise TargetError(
        422,
        f"target: {request.target!r} is none of {_KNOWN}{devices} and 'control network'",
    )


def _allow(request: FaultRequest, do: str, rule: str) -> None:
    if request.do not in (do, "restore"):
        raise TargetError(422, f"do: {request.do}: {rule}")


def _link(fabric: Fabric, *ends: str) -> FaultTarget:
    try:
        a, b = (Port.parse(end) for end in ends)
    except ValueError as error:
        raise TargetError(422, f"target: {error}") from None
    nodes = {*fabric.gpus, *fabric.packet_switches, *fabric.optical_switches}
    for port in (a, b):
        if port.node not in nodes:
            raise TargetError(
                404, f"there is no {port.node}; there are {listed(nodes)}"
            )
    if not any(":" in end for end in ends):
        try:
            only = fabric.link_between(*ends)
        except ValueError as error:
            raise TargetError(404, str(error)) from None
        a, b = only.a, only.b
    link = fabric.link_at.get(a)
    if link is None or link.other(a) != b:
        neighbours = [
            f"{port} leads to {fabric.link_at[port].other(port)}"
            for port in (a, b)
            if port in fabric.link_at
        ]
        leads = neighbours[0] if neighbours else "neither of them is plugged in"
        raise TargetError(404, f"there is no link {a} - {b}; {leads}")
    return FaultTarget(
        "link", f"link {link.a} {link.b}", (), dark_ports(fabric, [link])
    )


def _gpu(fabric: Fabric, kind: Literal["gpu", "nic"], name: str) -> FaultTarget:
    _check_gpu(fabric, name)
    links = {link for port, link in fabric.link_at.items() if port.node == name}
    if kind == "nic" and not links:
        raise TargetError(409, f"GPU {name} is not plugged into anything")
    return FaultTarget(kind, f"{kind} {name}", (name,), dark_ports(fabric, links))


def _switch(fabric: Fabric, name: str) -> FaultTarget:
    if name in fabric.optical_switches:
        if fabric.optical_switches[name].is_elsewhere:
            raise TargetError(
                409,
                f"optical switch {name} has an address in the fabric: it is not this lab's",
            )
        return FaultTarget("optical switch", f"switch {name}", (name,))
    if name not in fabric.packet_switches:
        there = [*fabric.packet_switches, *fabric.optical_switches]
        raise TargetError(404, f"there is no switch {name}; there are {listed(there)}")
    ports = frozenset(port for port in fabric.link_at if port.node == name)
    return FaultTarget("packet switch", f"switch {name}", (name,), ports)


def _agent(fabric: Fabric, gpu: str) -> FaultTarget:
    _check_gpu(fabric, gpu)
    onic = fabric.onics.get(gpu)
    if onic is None or onic.transmitters != "tunable":
        why = (
            "has no O-NIC"
            if onic is None
            else "has an O-NIC without an agent: its lasers are not tunable"
        )
        raise TargetError(409, f"GPU {gpu} {why}")
    return FaultTarget("agent", f"agent {gpu}", (gpu,))


def _process(kind: Kind, name: str, there: Collection[str]) -> FaultTarget:
    if name not in there:
        raise TargetError(404, f"there is no {kind} {name}; there are {listed(there)}")
    return FaultTarget(kind, f"{kind} {name}", (name,))


def _server_agent(request: FaultRequest) -> FaultTarget:
    if request.do == "restore":
        raise TargetError(
            422,
            "the server agent comes back by itself; while it is gone nobody answers",
        )
    if request.back_after_s is None:
        raise TargetError(
            422,
            "back_after_s: is missing; nobody could ask for the server agent to come back",
        )
    return FaultTarget("server agent", "server agent")


def _control_network(fabric: Fabric, control: ControlFaults | None) -> FaultTarget:
    for gpu in control.tuning_s if control is not None else ():
        _agent(fabric, gpu)
    if not any(onic.transmitters == "tunable" for onic in fabric.onics.values()):
        raise TargetError(
            409, "there is no control network: no GPU has an O-NIC with an agent"
        )
    return FaultTarget("control network", "control network")


def _check_gpu(fabric: Fabric, name: str) -> None:
    if name not in fabric.gpus:
        raise TargetError(
            404, f"there is no GPU {name}; there are {listed(fabric.gpus)}"
        )


def dark_ports(fabric: Fabric, links: Iterable[Link]) -> frozenset[Port]:
    """Return the ends of these links that are held down when the links are cut.

    A GPU's own end stays up if it is the worker's interface, because an interface that is down loses its
    routes. It has no carrier while the other end is down.
    """
    bare = fabric.gpus.keys() - fabric.onics.keys()
    return frozenset(
        port for link in links for port in (link.a, link.b) if port.node not in bare
    )


def listed(names: Iterable[str]) -> str:
    """Return some names as a list for a person to choose from, "none" if there are none."""
    known = sorted(names, key=lambda name: (len(name), name))
    more = f" and {len(known) - _TOLD} more" if len(known) > _TOLD else ""
    return (", ".join(known[:_TOLD]) or "none") + more
