"""REST of an emulated optical switch itself: what it really does, and the faults injected into it.

No product has it. It is how a test looks behind the management protocols: circuits as the light paths have
them, light and power of every port, counters. Errors are ``{"detail": "one line"}``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import fields
from typing import Annotated, Literal, Protocol, TypeVar

from fastapi import FastAPI, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from ringlight.controller.web.access import JsonBodies, OwnPagesOnly, TokenRequired
from ringlight.controller.web.api_page import add_api_page
from ringlight.controller.web.bounds import BoundedBodies
from ringlight.controller.web.refusals import add_input_handlers, errors, failure
from ringlight.fabric.crossconnect import PortState
from ringlight.testbed.emulation.optical.commands import NS, DeviceError, Effect, Wire
from ringlight.testbed.emulation.optical.datapath import Counters, Datapath
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.monitors import alarms_of, power_dbm
from ringlight.testbed.emulation.optical.recovery import ModelledPaths
from ringlight.testbed.emulation.optical.switch_faults import (
    SECONDS,
    FaultError,
    Faults,
    FaultSpec,
    Injected,
    Kind,
    TooManyFaults,
)

T = TypeVar("T")
#: A fault's seed and its number: what JSON's readers hold exactly.
_MAX_NUMBER = (1 << 53) - 1


class Inside(Protocol):
    """A running switch from the inside. All but ``ask`` is for what runs in the switch's own thread."""

    device: OpticalDevice
    faults: Faults

    @property
    def name(self) -> str: ...
    @property
    def addresses(self) -> dict[str, str]: ...
    @property
    def light_paths(self) -> Datapath | ModelledPaths: ...
    @property
    def clients(self) -> int: ...
    @property
    def now_ns(self) -> int: ...
    @property
    def resumed(self) -> bool: ...
    def apply(self, effects: Sequence[Effect]) -> int: ...
    def ask(self, function: Callable[[], T]) -> T:
        """Run a function in the switch's own thread and return its result."""


class SwitchDocument(BaseModel):
    """An emulated switch. ``addresses``: host and port of each management protocol."""

    name: str
    size: int = Field(
        description="Duplex faceplate ports: ingress 1..size, egress size+1..2*size"
    )
    profile: str
    wavelengths: int = Field(description="Channels that it tells apart; 0 for none")
    packets: bool = Field(
        description="Whether packets pass it; else its light paths are only modelled"
    )
    resumed: bool = Field(
        description="Whether light was burning already when it started"
    )
    addresses: dict[str, str]
    clients: int
    cross_connects: int
    faults: int
    mirror_moves: int = Field(
        description="Cross-connects tuned since the process began"
    )


class PortDocument(BaseModel):
    port: int
    side: Literal["ingress", "egress"]
    faceplate: int
    admin: Literal["enabled", "disabled", "failed"]
    state: PortState
    label: str
    plugged: bool | None = Field(
        description="Whether a fibre is there; None at an egress"
    )
    power_dbm: float
    light: bool = Field(description="Whether the power is above the threshold of LOS")
    peers: list[int] = Field(
        description="The other ends of its cross-connects, as it reports them"
    )
    mirror_moves: int


class LightRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    light: bool = Field(description="Whether the fibre at this ingress brings light in")


class CircuitDocument(BaseModel):
    """A cross-connect that is reported, that is in the light paths, or both."""

    ingress: int
    egress: int
    wavelength: int | None
    reported: bool = Field(description="Whether the management protocols show it")
    lit: bool = Field(description="Whether the light paths have it: the truth")
    tuned: bool = Field(description="Whether packets pass it by now")
    ready_s: float | None = Field(
        description="When they do, CLOCK_MONOTONIC seconds; None where there is no light"
    )
    loss_db: float | None = Field(
        description="What it loses; None where it is not reported"
    )


class AlarmDocument(BaseModel):
    port: int
    kind: Literal["LOS", "FAILED"]
    reason: str


class PortCounters(BaseModel):
    """Packets as the light paths count them, since the switch was first switched on."""

    port: int
    mirror_moves: int
    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int
    dark_drops: int
    unset_drops: int
    blocked_drops: int
    unplugged_drops: int
    dim_drops: int
    error_drops: int
    collisions: int
    receiver_overlaps: int
    dark_s: float | None = Field(
        description="Seconds without a packet at its latest change"
    )


class CountersDocument(BaseModel):
    mirror_moves: int
    ports: list[PortCounters]


class FaultRequest(BaseModel):
    """A fault to inject; what each kind does: docs/optical-management.md."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"kind": "deny", "count": 1},
                {"kind": "vanish", "probability": 0.05, "seed": 1, "seconds": 5.0},
                {"kind": "foreign-writer", "count": 1, "ingress": 1, "egress": 10},
                {"kind": "port-failed", "port": 1},
            ]
        },
    )

    kind: Kind
    protocol: str | None = Field(
        None, max_length=40, description="Whose clients meet it; None: all"
    )
    count: int | None = Field(
        None, ge=1, le=1_000_000, description="How often at most; None: until cleared"
    )
    probability: float = Field(1.0, ge=0.0, le=1.0, allow_inf_nan=False)
    seed: int = Field(0, ge=0, le=_MAX_NUMBER)
    seconds: float | None = Field(
        None,
        ge=0.0,
        le=3600.0,
        allow_inf_nan=False,
        description=f"Of {', '.join(f'{kind} ({seconds:g})' for kind, seconds in SECONDS.items())}",
    )
    port: int | None = Field(None, ge=1, le=8192, description="Of port-failed")
    ingress: int | None = Field(
        None, ge=1, le=4096, description="Of foreign-writer; None: it is drawn"
    )
    egress: int | None = Field(None, ge=2, le=8192)
    wavelength: int | None = Field(None, ge=0, le=4096)


class FaultDocument(FaultRequest):
    id: int
    hits: int = Field(description="How often it has acted")
    left: int | None = Field(
        description="How often it may still act; None: until it is cleared"
    )


class Cleared(BaseModel):
    cleared: list[int] = Field(description="Faults that have ended")


FaultId = Annotated[int, Path(ge=1, le=_MAX_NUMBER, examples=[1])]
PortNumber = Annotated[int, Path(ge=1, le=8192, examples=[1])]


def create_app(
    switch: Inside, tokens: Mapping[str, str] | None = None, hosts: Collection[str] = ()
) -> FastAPI:
    """Return the ASGI application of a running switch. With ``tokens`` (each with its name), every call needs
    a token."""
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        title="Ringlight emulated optical switch",
        version="1",
        description="What the switch really does, and the faults injected into it.",
        responses=errors(403, 503) if tokens is None else errors(401, 403, 503),
    )
    add_input_handlers(app)
    for kind, status, detail in _REFUSALS:
        app.add_exception_handler(kind, _refusing(status, detail))
    add_api_page(app)
    _add_reading(app, switch)
    _add_faults(app, switch)
    # The last one added is asked first.
    app.add_middleware(BoundedBodies)
    app.add_middleware(JsonBodies)
    if tokens is not None:
        app.add_middleware(TokenRequired, tokens=tokens)
    app.add_middleware(OwnPagesOnly, names=hosts)
    return app


def _add_reading(app: FastAPI, switch: Inside) -> None:
    device = switch.device

    @app.get("/v1/switch", tags=["switch"])
    def get_switch() -> SwitchDocument:
        """Return the switch's properties, and its numbers of clients, cross-connects and faults."""
        return switch.ask(lambda: _switch(switch))

    @app.get("/v1/ports", tags=["switch"])
    def get_ports() -> list[PortDocument]:
        """Every port, with its power and light."""
        return switch.ask(
            lambda: [_port(device, port, switch.now_ns) for port in _ports(device)]
        )

    @app.get("/v1/ports/{port}", tags=["switch"], responses=errors(404, 422))
    def get_port(port: PortNumber) -> PortDocument:
        if port not in _ports(device):
            raise HTTPException(404, f"there is no port {port} (1..{2 * device.size})")
        return switch.ask(lambda: _port(device, port, switch.now_ns))

    @app.put(
        "/v1/ports/{port}/light", tags=["switch"], responses=errors(404, 409, 415, 422)
    )
    def set_light(port: PortNumber, body: LightRequest) -> PortDocument:
        """Have light come in at an ingress, or none. Only where no packets pass: there fibres say it."""
        if port not in _ports(device):
            raise HTTPException(404, f"there is no port {port} (1..{2 * device.size})")
        if port > device.size:
            raise HTTPException(
                409, f"port {port} is an egress; light comes in at 1..{device.size}"
            )
        if isinstance(switch.light_paths, Datapath):
            raise HTTPException(
                409, f"port {port}: its fibre says whether there is light"
            )

        def receive() -> PortDocument:
            device.receive(port, body.light)
            return _port(device, port, switch.now_ns)

        return switch.ask(receive)

    @app.get("/v1/circuits", tags=["switch"])
    def get_circuits() -> list[CircuitDocument]:
        """Every cross-connect: whether it is reported, and whether the light paths have it."""
        return switch.ask(lambda: _circuits(switch))

    @app.get("/v1/alarms", tags=["switch"])
    def get_alarms() -> list[AlarmDocument]:
        alarms = switch.ask(lambda: alarms_of(device, switch.now_ns))
        return [AlarmDocument.model_validate(vars(alarm)) for alarm in alarms]

    @app.get("/v1/counters", tags=["switch"])
    def get_counters() -> CountersDocument:
        """Packets and mirror moves. A switch that no packet passes counts no packets."""
        return switch.ask(lambda: _counters(switch))


def _add_faults(app: FastAPI, switch: Inside) -> None:
    faults = switch.faults

    @app.get("/v1/faults", tags=["faults"])
    def get_faults() -> list[FaultDocument]:
        """The faults in force, those included that have acted as often as they may."""
        return switch.ask(lambda: [_fault(fault) for fault in faults.all()])

    @app.post(
        "/v1/faults", status_code=201, tags=["faults"], responses=errors(409, 415, 422)
    )
    def add_fault(body: FaultRequest) -> FaultDocument:
        """Inject a fault; it is in force when this answers."""
        spec = FaultSpec(**body.model_dump())

        def add() -> FaultDocument:
            made, effects = faults.add(switch.now_ns, spec)
            switch.apply(effects)
            return _fault(made)

        return switch.ask(add)

    @app.get("/v1/faults/{fault}", tags=["faults"], responses=errors(404, 422))
    def get_fault(fault: FaultId) -> FaultDocument:
        return _known(fault, lambda: switch.ask(lambda: _fault(faults.get(fault))))

    @app.delete("/v1/faults/{fault}", tags=["faults"], responses=errors(404, 422))
    def clear_fault(fault: FaultId) -> Cleared:
        """End a fault and repair its effects."""
        return _known(fault, lambda: switch.ask(lambda: _clear(switch, [fault])))

    @app.delete("/v1/faults", tags=["faults"])
    def clear_faults() -> Cleared:
        """End all faults."""
        return switch.ask(lambda: _clear(switch, [fault.id for fault in faults.all()]))


def _known(fault: int, call: Callable[[], T]) -> T:
    try:
        return call()
    except KeyError:
        raise HTTPException(404, f"there is no fault {fault}") from None


# In the switch's own thread


def _clear(switch: Inside, numbers: list[int]) -> Cleared:
    for number in numbers:
        switch.apply(switch.faults.clear(switch.now_ns, number))
    return Cleared(cleared=numbers)


def _fault(fault: Injected) -> FaultDocument:
    return FaultDocument(
        **vars(fault.spec), id=fault.id, hits=fault.hits, left=fault.left
    )


def _ports(device: OpticalDevice) -> range:
    return range(1, 2 * device.size + 1)


def _switch(switch: Inside) -> SwitchDocument:
    device = switch.device
    return SwitchDocument(
        name=switch.name,
        size=device.size,
        profile=device.profile.name,
        wavelengths=device.wavelengths,
        packets=isinstance(switch.light_paths, Datapath),
        resumed=switch.resumed,
        addresses=switch.addresses,
        clients=switch.clients,
        cross_connects=len(device.cross_connects()),
        faults=len(switch.faults.all()),
        mirror_moves=device.mirrors.moves.total(),
    )


def _port(device: OpticalDevice, port: int, now_ns: int) -> PortDocument:
    power = power_dbm(device, port, now_ns)
    ingress = port <= device.size
    return PortDocument(
        port=port,
        side="ingress" if ingress else "egress",
        faceplate=port if ingress else port - device.size,
        admin=device.admin(port).name.lower(),  # type: ignore[arg-type]
        state=device.port_state(port, now_ns),
        label=device.label(port),
        plugged=device.is_plugged(port) if ingress else None,
        power_dbm=round(power, 2),
        light=power >= device.profile.los_dbm,
        peers=device.peers(port),
        mirror_moves=device.mirrors.moves[port],
    )


def _circuits(switch: Inside) -> list[CircuitDocument]:
    device = switch.device
    reported = set(device.cross_connects())
    ready = {
        Wire(ingress, light.egress, colour): light.ready_ns
        for (ingress, colour), light in switch.light_paths.cross_connects().items()
    }
    return [
        CircuitDocument(
            ingress=wire.ingress,
            egress=wire.egress,
            wavelength=wire.wavelength,
            reported=wire in reported,
            lit=wire in ready,
            tuned=wire in ready and ready[wire] <= switch.now_ns,
            ready_s=ready[wire] / NS if wire in ready else None,
            loss_db=round(device.mirrors.loss_db(wire), 3)
            if wire in reported
            else None,
        )
        for wire in sorted(
            reported | ready.keys(),
            key=lambda wire: (wire.ingress, wire.wavelength or 0),
        )
    ]


def _counters(switch: Inside) -> CountersDocument:
    device, paths = switch.device, switch.light_paths
    names = [field.name for field in fields(Counters) if not field.name.endswith("_ns")]
    documents = []
    for port in _ports(device):
        counters = paths.counters(port) if isinstance(paths, Datapath) else Counters()
        packets = {name: getattr(counters, name) for name in names}
        documents.append(
            PortCounters(
                port=port,
                mirror_moves=device.mirrors.moves[port],
                dark_s=counters.dark_s,
                **packets,
            )
        )
    return CountersDocument(mirror_moves=device.mirrors.moves.total(), ports=documents)


#: Errors of the switch's own thread, and how they are told; None: by their text.
_REFUSALS: tuple[tuple[type[Exception], int, str | None], ...] = (
    (FaultError, 422, None),
    (TooManyFaults, 409, None),
    (DeviceError, 409, None),
    (TimeoutError, 503, "the switch did not come to it in time"),
    (CancelledError, 503, "the switch is ending"),
)


def _refusing(
    status: int, detail: str | None
) -> Callable[[Request, Exception], Response]:
    return lambda _, error: failure(status, detail or str(error))
