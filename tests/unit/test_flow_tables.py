"""Flow tables that others write: what differs, what is put back, and what users wrote over REST."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ringlight.controller.bus import EventBus
from ringlight.controller.openflow.encoding import rewrite
from ringlight.controller.openflow.errors import SwitchTimeoutError
from ringlight.controller.openflow.handshake import _tells_of_others
from ringlight.controller.openflow.messages import FlowEntry, Rewrite
from ringlight.controller.packets import flow_rules, watching
from ringlight.controller.packets.forwarding import Forwarding
from ringlight.controller.packets.tables import key_of, table_drift
from ringlight.controller.packets.watching import TableWatch
from ringlight.controller.store import Store
from ringlight.fabric.routing import Rule
from tests.unit.test_controller_rules import (
    FABRIC,
    PORTS,
    FakeTables,
    entry,
    light,
    wanted,
)

LIGHT = light(PORTS[:6])
RULES = [Rule("tor0", "10.0.0.1", 1), Rule("tor0", "10.0.0.2", 2, "10.0.0.1")]
STRANGE = entry(9, {"in_port": 4}, (), 77)


def table(rules: list[Rule]) -> list[FlowEntry]:
    mods = [
        flow_rules.TABLE_MISS,
        *(mod for rule in rules for mod in flow_rules.put(rule)),
    ]
    return [entry(m.priority, m.match, m.out_ports, m.cookie) for m in mods]


def test_a_table_as_it_should_be_is_no_drift_and_each_difference_is_named_and_mended() -> (
    None
):
    whole = table(RULES)
    assert not table_drift(RULES, {}, whole)
    gone = table_drift(RULES, {}, whole[1:])
    assert (str(gone), gone.mods) == (
        "1 flow is missing (priority 0 any to no port)",
        (flow_rules.TABLE_MISS,),
    )
    for other in (
        entry(whole[1].priority, whole[1].match, (9,), whole[1].cookie),
        entry(whole[1].priority, whole[1].match, whole[1].out_ports, 5),
        entry(whole[1].priority, whole[1].match, (), whole[1].cookie),
        # It outputs there, and does something else before.
        entry(
            whole[1].priority,
            whole[1].match,
            whole[1].out_ports,
            whole[1].cookie,
            plain=False,
        ),
        entry(
            whole[1].priority,
            whole[1].match,
            whole[1].out_ports,
            whole[1].cookie,
            idle_s=5,
        ),
    ):
        found = table_drift(RULES, {}, [whole[0], other, *whole[2:]])
        assert (len(found.changed), found.mods) == (
            1,
            tuple(flow_rules.put(RULES[0])[:1]),
        )
        assert (found.missing, found.foreign) == ((), ())
    added = table_drift(RULES, {}, [*whole, STRANGE])
    assert (
        str(added)
        == "1 flow was added by somebody else (priority 9 in_port=4 to no port)"
    )
    assert added.mods == (Rewrite("delete_strict", 9, 0, 77, STRANGE.wire),)
    assert str(table_drift(RULES, {}, [])).startswith("4 flows are missing (")


def test_a_user_s_flow_is_put_back_unless_it_runs_out_by_itself_or_takes_a_rule_s_place() -> (
    None
):
    short = entry(8, {"in_port": 3}, (1,), 77, idle_s=10)
    kept = {key_of(flow): flow for flow in (STRANGE, short)}
    assert not table_drift(RULES, kept, [*table(RULES), STRANGE, short])
    assert table_drift(RULES, kept, table(RULES)).mods == (
        Rewrite("add", 9, 0, 77, STRANGE.wire),
    )
    other = entry(9, {"in_port": 4}, (2,), 77)
    found = table_drift(RULES, kept, [*table(RULES), other])
    assert (len(found.changed), found.mods) == (
        1,
        (Rewrite("add", 9, 0, 77, STRANGE.wire),),
    )
    instead = entry(1000, table(RULES)[1].match, (4,), 77)
    assert not table_drift(RULES, {key_of(instead): instead}, table(RULES))


def test_a_flow_is_written_again_as_it_was() -> None:
    wire = STRANGE.wire.__class__(
        3, 4, 1, b"\0\1\0\4" + b"\0" * 4, b"\0\4\0\x08" + b"\0" * 4
    )
    text = bytes(rewrite(Rewrite("add", 9, 2, 77, wire)).buf)
    assert (text[0], text[1], int.from_bytes(text[2:4], "big")) == (4, 14, len(text))
    assert text.endswith(wire.match + wire.instructions)
    assert rewrite(Rewrite("delete_strict", 9, 2, 77, wire)).buf.endswith(
        b"\0\0" + wire.match
    )


def test_only_what_others_wrote_is_told_of() -> None:
    own = b"\0\x08\0\3" + b"\0\0\0\7"
    assert not _tells_of_others(own + own)
    assert _tells_of_others(own + b"\0\x18\0\1" + b"\0" * 20)
    assert not _tells_of_others(b"")


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tables = FakeTables()
        self.restart()
        self.forwarding.reconcile(LIGHT)
        self.watch.look(LIGHT)

    def restart(self) -> None:
        plane: Any = self.tables
        self.bus = EventBus()
        self.said = self.bus.subscribe()
        self.forwarding = Forwarding(FABRIC, plane)
        self.watch = TableWatch(
            FABRIC, plane, self.forwarding, Store(self.directory), self.bus
        )

    def others_write(self, *more: FlowEntry, without: int = 0) -> None:
        self.tables.tables[1] = [*self.tables.tables[1][without:], *more]

    def user_adds(self, *more: FlowEntry) -> None:
        with self.watch.written_by_user(1):
            self.others_write(*more)

    @property
    def right(self) -> bool:
        return self.tables.rules() == wanted(LIGHT)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(watching, "_PAUSE_S", 0.0)
    return Bench(tmp_path / "store")


def test_what_others_change_is_put_back_told_and_counted(bench: Bench) -> None:
    assert bench.right
    whole = len(bench.tables.tables[1])
    for number, (more, without) in enumerate((([], whole), ([STRANGE], 0), ([], 3)), 1):
        bench.said.take()
        bench.others_write(*more, without=without)
        assert bench.watch.touch("tor0")
        assert not bench.watch.touch("tor0")
        bench.watch.look(LIGHT)
        assert bench.right
        assert len(bench.tables.tables[1]) == whole
        view = bench.watch.views()["tor0"]
        assert (view.drift, view.drifts, view.mends) == (None, number, number)
        told, mended = bench.said.take()
        assert (told["event"], told["switch"], told["text"]) == (
            "flow_drift",
            "tor0",
            view.last,
        )
        assert (mended["event"], mended["problem"]) == ("flows_mended", None)
    bench.tables.sent.clear()
    bench.watch.look(LIGHT)
    assert bench.tables.sent == []
    assert bench.watch.views()["tor1"].drifts == 0


def test_a_switch_that_says_nothing_is_read_each_time(bench: Bench) -> None:
    bench.tables.readings = 0
    bench.watch.look(LIGHT)
    assert bench.tables.readings == 0
    bench.tables.tells_nothing = True
    bench.watch.connected("tor0")
    bench.watch.look(LIGHT)
    bench.others_write(without=4)
    bench.watch.look(LIGHT)
    assert bench.right
    assert bench.watch.views()["tor0"].mends == 1


def test_what_users_write_stays_also_after_a_restart_and_what_others_wrote_before_does_not(
    bench: Bench,
) -> None:
    other = entry(10, {"in_port": 3}, (2,), 5)
    bench.others_write(other)
    bench.user_adds(STRANGE)
    for _ in range(2):
        bench.watch.look(LIGHT)
        there = bench.tables.tables[1]
        assert STRANGE in there
        assert other not in there
        bench.restart()
    # Emptied by others, it gets the user's flow back; removed by the user, it stays away.
    bench.others_write(without=len(bench.tables.tables[1]))
    bench.watch.touch("tor0")
    bench.watch.look(LIGHT)
    assert bench.right
    assert STRANGE in bench.tables.tables[1]
    with bench.watch.written_by_user(1):
        bench.tables.tables[1] = []
    bench.watch.look(LIGHT)
    assert bench.right
    assert STRANGE not in bench.tables.tables[1]


def test_what_cannot_be_mended_stays_in_health_and_is_tried_again_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.others_write(without=4)
    bench.watch.touch("tor0")
    refusal = {1: SwitchTimeoutError("switch 1 did not answer within 3 s")}
    monkeypatch.setattr(bench.tables, "send_all", lambda *_, **__: refusal)
    bench.watch.look(LIGHT)
    view = bench.watch.views()["tor0"]
    assert view.drift is not None
    assert view.drift.endswith(": switch 1 did not answer within 3 s")
    bench.tables.readings = 0
    bench.watch.look(LIGHT)
    assert bench.tables.readings == 0
    monkeypatch.undo()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 10.0)
    bench.watch.look(LIGHT)
    assert bench.right
    assert bench.watch.views()["tor0"].drift is None
    assert [e["event"] for e in bench.said.take()] == [
        "flow_drift",
        "flows_mended",
        "flows_mended",
    ]
