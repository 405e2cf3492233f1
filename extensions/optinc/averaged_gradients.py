"""A worker whose gradients averagers add up: what ``fabric.algorithms.Algorithm.worker`` loads."""

from __future__ import annotations

import contextlib

from ringlight.containers.worker.gradients import Gradients
from ringlight.containers.worker.reducers import Answers, Summed
from ringlight.containers.worker.rendezvous import Line, Lines
from ringlight.containers.worker.spec import WorkerSpec
from ringlight.containers.worker.transport import Reduce
from ringlight.extensions.optinc import averager_place
from ringlight.extensions.optinc.averaged import summed_by
from ringlight.extensions.optinc.averager_place import place_in
from ringlight.extensions.optinc.reducing import reducing_at


class AveragedGradients(Gradients):
    """The sums come from averagers; ranks tell the scales of blocks on connections to every other rank."""

    def lines(self) -> dict[Line, bool]:
        return self._others().sending()

    def _others(self) -> Lines:
        peers = set(range(self._spec.world_size)) - {self._spec.rank}
        return Lines.of(self._spec, peers, peers)

    def _reducing(self, stack: contextlib.ExitStack) -> Reduce:
        place = place_in(self._spec)
        ways = {peer: self._wired[line] for peer, line in self._others().out.items()}
        return stack.enter_context(reducing_at(place, self._spec, ways))


class AveragerReducer:
    """Carries out the collective ``optinc`` (``containers.worker.reducers.Reducer``)."""

    def check(self, spec: WorkerSpec) -> None:
        averager_place.check(spec)

    def payload(self) -> type[Gradients]:
        return AveragedGradients

    def summed(self, spec: WorkerSpec, counted: Answers | None) -> Summed:
        return summed_by(place_in(spec), counted)
