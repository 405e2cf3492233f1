"""Every reachable state of two to four O-NICs is safe and leads to an end; planted faults are found."""

from __future__ import annotations

from typing import Any

import pytest

from docs.figures import states
from ringlight.controller.onic.control_messages import RELEASE, Message
from ringlight.controller.onic.effects import Dark, Effect, Peer
from ringlight.controller.onic.lease_times import Times
from ringlight.controller.onic.protocol import Onic
from ringlight.controller.onic.receiver import Receiver
from ringlight.controller.onic.transmitter import LIFE, Transmitter
from tests.unit.onic_explorer import SMALL, Case, Explorer

#: The changes of phases that the page shows.
PAGE = {(phase, after) for phase, following in LIFE.items() for after in following}


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_every_reachable_state(case: Case) -> None:
    explorer = Explorer(case)
    report = explorer.explore()
    assert explorer.changes <= PAGE
    print(  # noqa: T201
        f"{report.case}: {report.states} states, {report.transitions} transitions, {report.seconds} s"
    )
    assert report.passed, "\n".join([str(report.unsafe), *report.path])
    assert report.states > 500


def test_flows_live_as_the_page_shows() -> None:
    """Every change of the page's diagram comes about, and no other."""
    explorer = Explorer(
        Case(
            "two: slow laser, closed early", ((1, 1), ()), cancels=1, losses=1, tuning=1
        )
    )
    assert explorer.explore().unsafe is None
    assert explorer.changes == PAGE
    for page in states.PAGES:
        assert states.written(page.read_text()) == page.read_text(), (
            "python -m docs.figures.states"
        )


class NoQuarantine(Onic):
    """Grants at once after a restart."""

    def __init__(
        self,
        epoch: int,
        times: Times,
        now_s: float,
        *,
        ports: int = 2,
        quarantine: bool = True,
    ) -> None:
        super().__init__(epoch, times, now_s, ports=ports, quarantine=False)


def made_of(
    transmitter: type[Transmitter] = Transmitter, receiver: type[Receiver] = Receiver
) -> type[Onic]:
    """A control unit with other halves."""

    class Made(Onic):
        def __init__(self, *settings: Any, **more: Any) -> None:
            super().__init__(*settings, **more)
            self._tx = [transmitter(tx.port, self._unit) for tx in self._tx]
            self._rx = [receiver(rx.port, self._unit) for rx in self._rx]

    return Made


class LeaseFromGrant(Transmitter):
    """Counts the lease from when the grant arrived, not from when the request left."""

    def _granted(
        self, now_s: float, active: Any, until_s: float, lease_s: float, out: Any
    ) -> None:
        super()._granted(now_s, active, now_s + lease_s, lease_s, out)


class AnyRelease(Receiver):
    """Takes a late copy of a release for one of the flow that has the receiver now."""

    def receive(
        self, now_s: float, source: Peer, message: Message, out: list[Effect]
    ) -> None:
        grant = self.grant
        if message.kind == RELEASE and grant is not None and grant.source == source:
            message = message._replace(seq=grant.seq)
        super().receive(now_s, source, message, out)


class StaysLit(Onic):
    """Says that it let go, and keeps the light on."""

    def close(self, now_s: float, flow: Any) -> list[Effect]:
        return [
            effect
            for effect in super().close(now_s, flow)
            if not isinstance(effect, Dark)
        ]


class IgnoresEpochs(Onic):
    """Takes every epoch for a restart, so that a message from before one undoes it."""

    def receive(self, now_s: float, sender: Peer, message: Message) -> list[Effect]:
        known = self._unit.epochs.get(sender)
        if known is not None and message.epoch < known:
            self._unit.epochs[sender] = message.epoch - 1
        return super().receive(now_s, sender, message)


@pytest.mark.parametrize(
    ("machine", "case"),
    [
        (
            NoQuarantine,
            Case("receiver dies", ((2,), (2,), ()), deaths=1, mortal=(2,), late=0),
        ),
        (
            made_of(transmitter=LeaseFromGrant),
            Case("late grant", ((2,), (2,), ()), losses=2),
        ),
        (
            made_of(receiver=AnyRelease),
            Case("release twice", ((1, 1), ()), copies=1, late=0),
        ),
        (StaysLit, Case("stays lit", ((2,), (2,), ()), late=0)),
        (
            IgnoresEpochs,
            Case("former life", ((2,), (2,), ()), deaths=1, mortal=(0,), late=0),
        ),
    ],
)
def test_two_lights_on_a_receiver_are_found(machine: type[Onic], case: Case) -> None:
    report = Explorer(case, machine).explore()
    assert report.unsafe is not None
    assert report.path


class NeverExpires(Onic):
    """Waits for a release however long it takes."""

    def timer(self, now_s: float) -> list[Effect]:
        for rx in self._rx:
            if rx.grant is not None:
                rx.grant.until_s = max(rx.grant.until_s, now_s + 1)
        return super().timer(now_s)


class ForgetsTheQueue(Receiver):
    """Grants a free receiver to who asks, never to who waits."""

    def _grant_next(self, now_s: float, out: list[Effect]) -> None:
        if len(self.queue) == 1:
            super()._grant_next(now_s, out)


@pytest.mark.parametrize(
    ("machine", "case"),
    [
        (NeverExpires, Case("no release arrives", ((1,), ()), losses=3, late=0)),
        (
            made_of(receiver=ForgetsTheQueue),
            Case("two wait", ((3,), (3,), (3,), ()), late=0),
        ),
    ],
)
def test_a_deadlock_is_found(machine: type[Onic], case: Case) -> None:
    report = Explorer(case, machine).explore()
    assert report.unsafe is None
    assert report.stuck or report.unserved
    assert report.path
