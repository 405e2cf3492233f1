"""A worker's orders: ``spec.json``, written by the server agent."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringlight.workloads.job_settings import JobSettings


class BadSpec(Exception):
    """The spec cannot be used; the message names the file and the key."""


@dataclass(frozen=True)
class LinkTestSpec:
    """Send for ``seconds`` to rank ``to`` (None: only receive)."""

    seconds: float = 0.8
    to: int | None = None


@dataclass(frozen=True)
class WorkerSpec(JobSettings):
    """One rank of one job.

    ``workload``: "train"; "graph" executes the graph of operations in the file ``workload`` beside the spec,
    each computation ``slower`` times as long; "linktest"; "hold" holds the NIC for a command that runs
    beside it, for at most ``deadline_s``.
    ``onic``: the socket of its O-NIC's agent, without whose light it sends no payload; None without an O-NIC.
    ``checkpoint``: the directory for its state, written after every ``checkpoint_every``-th iteration; None
    writes none. ``resume``: the iteration to begin at, from the state that is there; 0 begins at the start.
    ``posted``: count what the NIC is given to send (``posted``), and have payload one way on each connection.
    With ``light`` the end of each stage is posted that it follows.
    ``place``: what the devices that do its collective tell a rank of theirs. ``windows_bytes``: how many
    bytes each rank may have in flight to this one; none if the kernel decides.
    """

    job: str
    rank: int
    world_size: int
    peers: tuple[str, ...]
    slower: float = 1.0
    onic: str | None = None
    checkpoint: str | None = None
    resume: int = 0
    posted: bool = False
    place: Mapping[str, Any] | None = None
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
    """Return the spec in decoded JSON. Raises BadSpec.

    The controller, which makes it, has checked the values of a job's settings; here its keys are, and what
    the ranks of a collective can do.
    """
    if not isinstance(raw, dict):
        raise BadSpec("expected an object")
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in raw.items()
    }
    values["linktest"] = fill(LinkTestSpec, raw.get("linktest") or {}, "linktest.")
    spec: WorkerSpec = fill(WorkerSpec, values, "")
    if spec.light is not None and not spec.posted:
        raise BadSpec(
            f"light {spec.light}: only {spec.light} of a graph whose light stands"
        )
    if spec.workload == "train":
        _check_collective(spec, spec.world_size)
    return spec


def _check_collective(spec: WorkerSpec, ranks: int) -> None:
    # Imported here, so that a link test, which has none, loads no numpy.
    from ringlight.fabric.algorithms import parse_collective, steps_named

    try:
        collective = parse_collective(spec.collective)
        load = collective.kind.worker
        if load is None:
            steps_named(spec.collective, ranks)
    except ValueError as error:
        raise BadSpec(f"collective: {error}") from None
    if collective.bits is not None and spec.onic is not None:
        raise BadSpec(f"collective: {spec.collective} cannot ask an O-NIC for light")
    if collective.bits is not None and ranks < 2:
        raise BadSpec(f"collective: {spec.collective} of {ranks} rank: at least 2")
    if load is not None:
        load().check(spec)
    elif spec.place is not None:
        raise BadSpec(f"place: collective {spec.collective} has none")


def fill(kind: Any, raw: Any, prefix: str) -> Any:
    """Return ``kind`` built from ``raw``. Raises BadSpec for keys that it has not, or that are missing."""
    if not isinstance(raw, dict):
        raise BadSpec(f"{prefix.rstrip('.')} must be an object")
    known = {field.name: field for field in dataclasses.fields(kind)}
    if unknown := sorted(raw.keys() - known.keys()):
        raise BadSpec(f"unknown key {prefix}{unknown[0]}")
    for name, field in known.items():
        if field.default is dataclasses.MISSING and name not in raw:
            raise BadSpec(f"key {prefix}{name} is missing")
    return kind(**raw)
