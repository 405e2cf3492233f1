"""Faults of a lab over several hosts: the first part has the others break what is theirs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ringlight.extensions.hosts.parts.front import OtherPart
from ringlight.extensions.hosts.parts.plan import Parts
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.fault_targets import FaultRequest, FaultTarget
from ringlight.testbed.emulation.shared_lab import Piece

#: Between two questions whether a fault has come about, and longest wait for it, seconds.
_EVERY_S, _DONE_S = 0.02, 40.0


class Elsewhere:
    """The fault services of the other parts."""

    def __init__(
        self, fabric: Fabric, parts: Parts, other_parts: Sequence[OtherPart]
    ) -> None:
        self._fabric, self._parts, self._others = fabric, parts, tuple(other_parts)

    def pieces(
        self, target: FaultTarget, request: FaultRequest
    ) -> tuple[bool, list[Piece]]:
        """Return whether a fault concerns this part, and the pieces of the fault at other parts."""
        if request.effects:
            return True, [self._piece(other, target, request) for other in self._others]
        nodes = self._nodes(target)
        theirs = [other for other in self._others if nodes & other.nodes]
        here = bool(nodes & self._parts.here) or not theirs
        return here, [self._piece(other, target, request) for other in theirs]

    def _nodes(self, target: FaultTarget) -> set[str]:
        """Nodes that a fault is about, and those at the other ends of its fibres that are cut."""
        if target.kind == "worker":
            job, rank = target.names
            workers = (w for other in self._others for w in other.workers)
            return {
                w["gpu"] for w in workers if (w["job"], str(w["rank"])) == (job, rank)
            }
        cut = {
            Port.parse(end)
            for fibre in self._parts.fibres
            for end in (fibre.a, fibre.b)
        }
        far = {
            self._fabric.link_at[port].other(port).node for port in target.ports & cut
        }
        return {*target.names, *(port.node for port in target.ports), *far}

    def _piece(
        self, other: OtherPart, target: FaultTarget, request: FaultRequest
    ) -> Piece:
        def begin() -> None:
            body = request.model_dump(mode="json") | {
                "target": target.text,
                "back_after_s": None,
            }
            report = _asked(
                other, {key: value for key, value in body.items() if value is not None}
            )
            self._follow(other, report["id"], ("in force", "over"))

        def end() -> None:
            report = _asked(other, {"do": "restore", "target": target.text})
            self._follow(other, report["id"], ("over",))

        return begin, None if target.kind == "worker" else end

    def _follow(self, other: OtherPart, fault: str, until: Sequence[str]) -> None:
        """Raises OSError, also where it takes too long."""
        deadline = time.monotonic() + _DONE_S
        while time.monotonic() < deadline:
            try:
                reports = other.ask("GET", "/v1/faults")["faults"]
            except AgentError as error:
                raise OSError(str(error)) from None
            report = next(
                candidate for candidate in reports if candidate["id"] == fault
            )
            if report["state"] == "failed":
                raise OSError(f"host {other.host}: {report['error']}")
            if report["state"] in until:
                return
            time.sleep(_EVERY_S)
        raise TimeoutError(
            f"host {other.host}: not {' or '.join(until)} within {_DONE_S:g} s"
        )

    def counters(self) -> list[Mapping[str, list[Mapping[str, Any]]]]:
        """Return the counters of each other part's devices, without parts that do not answer."""
        counters = []
        for other in self._others:
            try:
                counters.append(other.ask("GET", "/v1/counters"))
            except AgentError:
                continue
        return counters


def _asked(other: OtherPart, body: dict[str, Any]) -> Any:
    try:
        return other.ask("POST", "/v1/faults", body)
    except AgentError as error:
        raise OSError(str(error)) from None
