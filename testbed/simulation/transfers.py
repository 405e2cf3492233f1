"""The transfers of one job: their plan, the gate that they pass, and their flows over the network's links."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from ringlight.fabric.steps import Step
from ringlight.testbed.simulation.exchange import Lanes, StepPlan
from ringlight.testbed.simulation.job_context import JobContext
from ringlight.testbed.simulation.link_flows import LinkFlow, More
from ringlight.testbed.simulation.networks import Routes
from ringlight.testbed.simulation.passing import Part
from ringlight.testbed.simulation.streaming import Stream


class Transfers:
    """Transfers between ``ranks``, the GPUs of a job. ``failed`` is called once with why the job fails.

    ``plan``: of each step of its collective. ``engine``: what has its flows. ``over``: nothing begins any
    more.
    """

    def __init__(
        self,
        context: JobContext,
        ranks: tuple[str, ...],
        failed: Callable[[str], None],
    ) -> None:
        self.context, self.ranks = context, ranks
        self.engine = context.engine
        self.plan: list[StepPlan] = []
        self.over = False
        self._failed = failed
        self._flows: dict[LinkFlow, tuple[Lanes, int]] = {}
        self._opened: dict[Hashable, None] = {}
        #: Since when flows in progress have no way, seconds.
        self._lost: dict[LinkFlow, float] = {}
        #: Starts of transfers that have no way for now, and since when, seconds.
        self._stranded: list[tuple[float, Callable[[], None]]] = []
        #: Why a transfer has no way, if that was so after the newest change.
        self.no_way: str | None = None

    def routes(self, step: Step, number: int) -> Routes:
        return self.context.network.routes(self.ranks, step, number)

    def links(self, locals_: Sequence[int]) -> tuple[int, ...]:
        return self.context.links(locals_)

    def lanes(self) -> list[Lanes]:
        """Return the lanes of all steps, each once."""
        return list(dict.fromkeys(plan.lanes for plan in self.plan))

    def transfer(self, number: int, k: int, done: Callable[[], None]) -> None:
        """Start transfer ``k`` of step ``number``, through the gate if there is one."""
        plan = self.plan[number]
        gate = self.context.gate
        if gate is None:
            self._flow(plan, k, done)
            return
        handle: list[Hashable] = []

        def on_lit() -> None:
            self._flow(plan, k, over)

        def over() -> None:
            self._opened.pop(handle[0], None)
            gate.close(handle[0])
            done()

        ranks, lanes = self.ranks, plan.lanes
        source, destination = ranks[lanes.sources[k]], ranks[lanes.destinations[k]]
        try:
            handle.append(gate.open(source, destination, on_lit, self._failed))
        except ValueError as error:
            self._failed(str(error))
            return
        self._opened[handle[0]] = None

    def pass_on(
        self, part: Part, waited_s: float, more: More, done: Callable[[], None]
    ) -> None:
        self._flow(
            self.plan[part.number],
            part.k,
            done,
            size=part.size,
            waited_s=waited_s,
            more=more,
        )

    def _flow(
        self,
        plan: StepPlan,
        k: int,
        done: Callable[[], None],
        *,
        size: float | None = None,
        waited_s: float = 0.0,
        more: More | None = None,
    ) -> None:
        """Start ``size`` bytes of transfer ``k``, by default all of it, which could have gone ``waited_s``
        ago."""
        size = float(plan.lanes.sizes[k]) if size is None else size

        def end() -> None:
            self.forget(flow)
            done()

        flow = LinkFlow(size, end, more)
        self._begin_flow(flow, plan.lanes, k, waited_s)

    def begin_stream(self, stream: Stream, flow: LinkFlow) -> None:
        self._begin_flow(flow, self.plan[0].lanes, stream.k)

    def _begin_flow(
        self, flow: LinkFlow, lanes: Lanes, k: int, waited_s: float = 0.0
    ) -> None:
        if self.over:
            return
        try:
            links, latency_s = lanes.way(k)
        except ValueError as error:
            if self.context.patient:
                self.no_way = str(error)
                now_s = self.context.engine.now_s
                self._stranded.append((now_s, lambda: self._begin_flow(flow, lanes, k)))
            else:
                self._failed(str(error))
            return
        self._flows[flow] = (lanes, k)
        self.engine.begin(flow, links, max(0.0, latency_s - waited_s))

    def forget(self, flow: LinkFlow) -> None:
        del self._flows[flow]
        self._lost.pop(flow, None)

    def reroute(self) -> None:
        """Have flows in progress take their ways over the new network. The job fails if one has none."""
        engine, self.no_way = self.context.engine, None
        for flow, (lanes, k) in list(self._flows.items()):
            try:
                links, _ = lanes.way(k)
            except ValueError as error:
                if self.context.patient:
                    self._lost.setdefault(flow, engine.now_s)
                    self.no_way = str(error)
                    continue
                self._failed(str(error))
                return
            # One that has come onto its links later stands only since then.
            since_s = max(self._lost.pop(flow, engine.now_s), flow.since_s)
            engine.reroute(flow, links)
            if (
                flow.entered
                and (until_s := self.context.resumed_s(since_s)) > engine.now_s
            ):
                engine.stand(flow, until_s)
        stranded, self._stranded = self._stranded, []
        for since_s, start in stranded:
            until_s = self.context.resumed_s(since_s)
            if until_s > engine.now_s:
                engine.at(until_s, start)
            else:
                start()

    def stop(self) -> None:
        """Stop everything that is in progress. Nothing begins any more."""
        self.over = True
        for flow in list(self._flows):
            self.context.engine.stop(flow)
        self._flows.clear()
        if self.context.gate is not None:
            for handle in list(self._opened):
                self.context.gate.close(handle)
        self._opened.clear()
        self._lost.clear()
        self._stranded.clear()
