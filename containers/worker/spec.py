"""A worker's orders: ``spec.json``, written by the server agent."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKLOADS = ("train", "graph", "linktest", "hold")


class BadSpec(Exception):
    """The spec cannot be used; the message names the file and the key."""


@dataclass(frozen=True)
class LinkTestSpec:
    """Send for ``seconds`` to rank ``to`` (None: only receive)."""

    seconds: float = 0.8
    to: int | None = None


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


@dataclass(frozen=True)
class WorkerSpec:
    """One rank of one job. Names end in their unit; ``gradient_bytes`` is what each rank all-reduces.

    ``workload``: what it does; ``graph`` executes the graph of operations in the file ``workload`` beside the
    spec, each computation ``slower`` times as long; ``hold`` holds the NIC for a command that runs
    beside it, for at most ``deadline_s``. ``compute_s``: emulated GPU time per iteration.
    ``beacon_interval_s``: 0 sends no beacons. ``go_timeout_s``: how long a ready worker waits for its start.
    ``onic``: the socket of its O-NIC's agent, without whose light it sends no payload; None without an O-NIC.
    ``checkpoint``: the directory for its state, written after every ``checkpoint_every``-th iteration; None
    writes none. ``resume``: the iteration to begin at, from the state that is there; 0 begins at the start.
    ``posted``: count what the NIC is given to send (``posted``), and have payload one way on each connection.
    ``light``: "phases" if it follows the phases of the job's graph, each of whose ends is then posted.
    ``averager``: of the collective ``optinc``, and of no other. ``windows_bytes``: how many bytes each rank
    may have in flight to this one; none if the kernel decides.
    """

    job: str
    rank: int
    world_size: int
    peers: tuple[str, ...]
    port: int = 29500
    workload: str = "train"
    collective: str = "ring"
    gradient_bytes: int = 16384
    compute_s: float = 0.0
    slower: float = 1.0
    iterations: int = 1
    batch: int = 28
    seed: int = 0
    learning_rate: float = 0.05
    connect_timeout_s: float = 60.0
    peer_timeout_s: float = 15.0
    go_timeout_s: float = 600.0
    interface: str = "eth0"
    beacon_interval_s: float = 0.0
    onic: str | None = None
    checkpoint: str | None = None
    checkpoint_every: int = 1
    resume: int = 0
    posted: bool = False
    light: str | None = None
    averager: AveragerPlace | None = None
    deadline_s: float = 3600.0
    linktest: LinkTestSpec = LinkTestSpec()
    windows_bytes: tuple[int, ...] = ()

    @property
    def address(self) -> str:
        return self.peers[self.rank]


def read_spec(path: Path) -> WorkerSpec:
    """Return the spec in the JSON file ``path``. Raises BadSpec with one line that names what is wrong."""
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadSpec(f"{path.name}: {error}") from error
    try:
        return parse_spec(raw)
    except BadSpec as error:
        raise BadSpec(f"{path.name}: {error}") from error


def parse_spec(raw: Any) -> WorkerSpec:
    """Return the spec in decoded JSON. Raises BadSpec."""
    if not isinstance(raw, dict):
        raise BadSpec("expected an object")
    values = {**raw, "linktest": _fill(LinkTestSpec, raw.get("linktest") or {}, "linktest.")}
    if raw.get("averager") is not None:
        values["averager"] = _fill(AveragerPlace, raw["averager"], "averager.")
    spec: WorkerSpec = _fill(WorkerSpec, values, "")
    size, parameter_bytes = spec.world_size, 9640
    rules = [
        (size >= 1, f"world_size must be at least 1, not {size}"),
        (len(spec.peers) == size, f"peers has {len(spec.peers)} addresses for a world_size of {size}"),
        (
            len(spec.windows_bytes) in (0, size),
            f"windows_bytes has {len(spec.windows_bytes)} values for a world_size of {size}",
        ),
        (0 <= spec.rank < size, f"rank {spec.rank} is not in 0..{size - 1}"),
        (0 < spec.port < 65536, f"port {spec.port} is not a TCP port"),
        (spec.workload in WORKLOADS, f"workload must be one of {WORKLOADS}, not {spec.workload!r}"),
        (
            spec.gradient_bytes % 4 == 0 and spec.gradient_bytes >= parameter_bytes,
            f"gradient_bytes must be a multiple of 4 from {parameter_bytes}, not {spec.gradient_bytes}",
        ),
        (spec.compute_s >= 0, "compute_s must not be negative"),
        (spec.slower > 0, "slower must be positive"),
        (spec.workload != "graph" or spec.onic is None, "workload graph: it cannot ask an O-NIC for light"),
        (
            spec.light is None or (spec.light == "phases" and spec.posted and spec.workload == "graph"),
            f"light {spec.light}: only phases of a graph whose light stands",
        ),
        (spec.iterations >= 1, "iterations must be at least 1"),
        (spec.batch >= 1, "batch must be at least 1"),
        (spec.connect_timeout_s > 0, "connect_timeout_s must be positive"),
        (spec.peer_timeout_s > 0, "peer_timeout_s must be positive"),
        (spec.deadline_s > 0, "deadline_s must be positive"),
        (spec.workload != "hold" or spec.onic is None, "workload hold: it cannot ask for light"),
        (spec.beacon_interval_s >= 0, "beacon_interval_s must not be negative"),
        (spec.checkpoint_every >= 1, "checkpoint_every must be at least 1"),
        (
            0 <= spec.resume <= spec.iterations,
            f"resume {spec.resume} is not in 0..{spec.iterations} (iterations)",
        ),
        (not spec.resume or spec.checkpoint is not None, "resume needs a checkpoint to resume from"),
        (spec.linktest.seconds > 0, "linktest.seconds must be positive"),
        (
            spec.linktest.to is None or (0 <= spec.linktest.to < size and spec.linktest.to != spec.rank),
            f"linktest.to {spec.linktest.to} is not another rank",
        ),
    ]
    for holds, message in rules:
        if not holds:
            raise BadSpec(message)
    if spec.workload == "train":
        _check_collective(spec, size)
    return spec


def _check_collective(spec: WorkerSpec, ranks: int) -> None:
    # Imported here, so that a link test, which has none, loads no numpy.
    from ringlight.fabric.schedules import parse_collective, steps_named

    try:
        collective = parse_collective(spec.collective)
        averaged = collective.averaged
        if not averaged:
            steps_named(spec.collective, ranks)
    except ValueError as error:
        raise BadSpec(f"collective: {error}") from None
    if collective.bits is not None and spec.onic is not None:
        raise BadSpec(f"collective: {spec.collective} cannot ask an O-NIC for light")
    if collective.bits is not None and ranks < 2:
        raise BadSpec(f"collective: {spec.collective} of {ranks} rank: at least 2")
    place = spec.averager
    if averaged != (place is not None):
        raise BadSpec(f"averager: collective {spec.collective} {'needs one' if averaged else 'has none'}")
    if place is not None and not (0 <= place.port < place.ports and ranks % place.ports == 0):
        raise BadSpec(f"averager: port {place.port} of {place.ports} for {ranks} ranks")
    if averaged and spec.checkpoint is not None:
        raise BadSpec(f"checkpoint: collective {spec.collective} keeps no state to go on from")


def _fill(kind: Any, raw: Any, prefix: str) -> Any:
    """Return ``kind`` built from ``raw`` with the types that its annotations name. Raises BadSpec."""
    if not isinstance(raw, dict):
        raise BadSpec(f"{prefix.rstrip('.')} must be an object")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(raw.keys() - fields.keys())
    if unknown:
        raise BadSpec(f"unknown key {prefix}{unknown[0]}")
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in raw:
            raise BadSpec(f"key {prefix}{name} is missing")
    converted = {name: _convert(value, str(fields[name].type), prefix + name) for name, value in raw.items()}
    return kind(**converted)


def _convert(value: Any, annotation: str, name: str) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation == "float" and number:
        return float(value)
    if annotation in ("int", "int | None") and number and value == int(value):
        return int(value)
    if annotation == "bool" and isinstance(value, bool):
        return value
    if annotation.endswith("| None") and value is None:
        return None
    if annotation in ("str", "str | None") and isinstance(value, str):
        return value
    if isinstance(value, LinkTestSpec | AveragerPlace):
        return value
    if (
        annotation == "tuple[int, ...]"
        and isinstance(value, list)
        and all(type(item) is int for item in value)
    ):
        return tuple(value)
    if (
        annotation == "tuple[str, ...]"
        and isinstance(value, list)
        and all(isinstance(item, str) for item in value)
    ):
        return tuple(value)
    words = {"tuple[str, ...]": "a list of addresses", "tuple[int, ...]": "a list of whole numbers"}
    expected = {**words, "bool": "true or false"}.get(annotation, annotation)
    raise BadSpec(f"{name} must be {expected}, not {value!r}")
