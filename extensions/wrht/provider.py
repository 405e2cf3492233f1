"""Rings of wavelengths: a job has all nodes of one, and its light is set between the steps of its collective.

Every WSS carries what the first step needs, every node gets its transmit table, and a conductor
(:mod:`extensions.wrht.conducting`) opens the nodes' flow sockets and steps the light through the collective.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ringlight.controller.errors import InvalidError, UnavailableError
from ringlight.controller.light.alone import Alone
from ringlight.controller.light.documents import LitPair, OnicDocument
from ringlight.controller.light.provider import LightContext, on_all
from ringlight.controller.light.switches import Lights
from ringlight.controller.light.traffic import steps_of_job
from ringlight.controller.server_agent import required_agent
from ringlight.extensions.wrht.conducting import RingConductor
from ringlight.extensions.wrht.documents import RingPart, RingPlanned, SetUp
from ringlight.extensions.wrht.ring import WdmRing
from ringlight.extensions.wrht.ring_plane import RingPlane
from ringlight.extensions.wrht.wdm import RingPlan, plan_ring, set_up_steps
from ringlight.fabric.crossconnect import Emit
from ringlight.fabric.topology import Fabric

#: Bytes of an element of the gradient.
_ITEM_BYTES = 4


def plan_light(
    fabric: Fabric,
    ring: WdmRing,
    settings: Mapping[str, Any],
    ranks: Sequence[str] = (),
) -> RingPlan:
    """Return the plan that follows from what a job's workers send.

    ``settings``: the workers' settings (``workload``, ``collective``, ``gradient_bytes``, ``linktest``).
    ``ranks``: nodes in rank order; empty if rank i is node i. Raises InvalidError naming what does not fit.
    """
    steps = steps_of_job(settings, len(ring.nodes), f"ring {ring.name}")
    elements = settings.get("gradient_bytes")
    if elements is not None and elements // _ITEM_BYTES < steps.chunks:
        # A part without elements is never sent, so its step would never be over.
        few = f"{elements} bytes are fewer elements than the {steps.chunks} parts of {steps.name}"
        raise InvalidError(f"gradient_bytes: {few}")
    try:
        plan = plan_ring(fabric, ring, steps, ranks)
    except ValueError as error:
        raise InvalidError(f"{steps.name} on ring {ring.name}: {error}") from error
    if not any(step.pairs for step in plan.steps):
        raise InvalidError(f"{steps.name} on ring {ring.name}: no rank sends anything")
    return plan


class RingProvider(Alone[RingPlan, RingConductor]):
    """Provider of light on rings. The server agent keeps the transmit tables."""

    kind = RingPlane.kind
    Own = RingPart
    Planned = RingPlanned
    Change = SetUp

    def __init__(self, context: LightContext) -> None:
        super().__init__(context)
        #: Path of each node's flow socket, by GPU.
        self._sockets = context.flow_sockets

    # A job's light

    def plan(
        self, plane: RingPlane, nodes: tuple[str, ...], settings: Mapping[str, Any]
    ) -> RingPlan:
        return plan_light(self._fabric, plane.ring, settings, nodes)

    def _begin(
        self, job_id: str, light: RingPlan, lights: Lights
    ) -> tuple[RingConductor, dict[str, float]]:
        began = time.monotonic()
        _, problems = lights.set(light.steps[0].cross_connects, exactly=True)
        if problems:
            raise UnavailableError(f"ring {light.place}: {problems[0]}")
        lit_s = time.monotonic()
        self._write_tables(
            light.place, {node: self._table(light, node) for node in light.nodes}
        )
        took = {"light_s": lit_s - began, "tables_s": time.monotonic() - lit_s}
        return self._conductor(job_id, light, lights, resumed=False), took

    def _resume(self, job_id: str, light: RingPlan, lights: Lights) -> RingConductor:
        """Return the conductor of a job that runs already, with its light and tables in place."""
        return self._conductor(job_id, light, lights, resumed=True)

    def _forget(self, light: RingPlan) -> None:
        self._write_tables(light.place, {node: {} for node in light.nodes})

    def _conductor(
        self, job_id: str, plan: RingPlan, lights: Lights, *, resumed: bool
    ) -> RingConductor:
        sockets = {node: self._sockets[node] for node in plan.nodes}
        ips = {node: self._fabric.gpus[node].ip for node in plan.nodes}
        try:
            return RingConductor(
                job_id, plan, lights, sockets, ips, self._bus, resumed=resumed
            )
        except OSError as error:
            raise UnavailableError(
                f"ring {plan.place}: flow socket {error.strerror or error}"
            ) from error

    # Transmit tables

    def _table(self, plan: RingPlan, node: str) -> dict[str, Emit]:
        """Return a node's transmit settings by its peers' IP addresses."""
        return {
            self._fabric.gpus[peer].ip: emit
            for peer, emit in plan.transmit[node].items()
        }

    def _write_tables(
        self, ring: str, tables: Mapping[str, Mapping[str, Emit]]
    ) -> None:
        """Send the transmit tables to the O-NICs.

        Raises ControllerError naming the first one whose table differs.
        """
        agent = required_agent(self._agent)

        def write(node: str) -> None:
            table = {ip: vars(emit) for ip, emit in tables[node].items()}
            if agent.set_transmit(node, table) != table:
                raise UnavailableError(
                    f"ring {ring}: the transmit table of {node} did not read back"
                )

        for error in on_all(list(tables), write):
            raise error

    # Looking

    def switches(self, plane: RingPlane) -> tuple[str, ...]:
        return plane.ring.switches

    def _own(self, plane: RingPlane) -> RingPart:
        playing, last = self._playing.get(plane.name), self._last.get(plane.name)
        return RingPart(
            None if playing is None else playing.document(),
            None if last is None else last.statistics(),
        )

    def plan_document(self, light: RingPlan) -> RingPlanned:
        return RingPlanned(
            light.place,
            self.kind,
            list(light.nodes),
            list(light.switches),
            len(light.steps),
            sum(set_up_steps(light)),
            light.transmit,
        )

    def lightpaths(self, plane: RingPlane, since: float) -> list[LitPair]:
        playing = self._playing.get(plane.name)
        return [] if playing is None else playing.lit_pairs()

    def onic(self, plane: RingPlane, gpu: str) -> OnicDocument:
        playing = self._playing.get(plane.name)
        table = {} if playing is None else self._table(playing.plan, gpu)
        return OnicDocument(gpu, plane.name, transmit=table)
