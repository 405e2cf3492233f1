"""An emulated lab: what its ports counted, and how it ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringlight.experiments.backends.emulation import lab as emulation
from ringlight.experiments.backends.emulation.link_counters import carried
from ringlight.fabric.parts import Link, Port
from tests.unit.test_emulation_requests import SWITCH, plan_of

PAIR = "jobs: {red: {ranks: [g0, g1]}}\n"


def test_a_link_between_switches_is_counted_by_who_sends() -> None:
    link = Link(Port("tor0", 3), Port("tor1", 3), 1e9, 0.0)
    before = {("tor0", 3): (10, 100), ("tor1", 3): (90, 20)}
    after = {("tor0", 3): (15, 400), ("tor1", 3): (380, 27)}
    assert carried(link, before, after) == [
        {"from": "tor0:3", "to": "tor1:3", "bytes": 300},
        {"from": "tor1:3", "to": "tor0:3", "bytes": 7},
    ]
    # A switch that was killed counts from 0 again.
    assert carried(link, before, {**after, ("tor0", 3): (3, 50)}) == [
        {"from": "tor0:3", "to": "tor1:3", "bytes": 290},
        {"from": "tor1:3", "to": "tor0:3", "bytes": 7},
    ]
    fibre = Link(Port("g0", 0), Port("tor0", 3), 1e9, 0.0)
    assert carried(fibre, before, after) == [
        {"from": "g0:0", "to": "tor0:3", "bytes": 5},
        {"from": "tor0:3", "to": "g0:0", "bytes": 300},
    ]


def test_links_in_doubt_are_settled_at_the_end_unless_a_run_was_broken_off(
    tmp_path: Path,
) -> None:
    """Also as it began: whoever asked for the end would wait, and be told of a link test instead."""

    class Doubts:
        asked = 0
        broken = False

        def repeat(self, *, last: bool = False) -> None:
            self.asked += last
            if self.broken:
                raise KeyboardInterrupt

    def closed(*, broken: bool) -> int:
        plan = plan_of(SWITCH + PAIR)
        processes: Any = SimpleNamespace(
            inventory={"agent": "unix:/none"},
            stop=lambda: None,
            state=tmp_path,
            astray=list,
        )
        api: Any = SimpleNamespace(close=lambda: None)
        links: Any = Doubts()
        nothing: Any = None
        lab = emulation.EmulatedLab(
            plan.setting, processes, api, links, nothing, lambda: None
        )
        if broken:
            links.broken = True
            with pytest.raises(KeyboardInterrupt):
                lab.begin(plan)
        lab.close()
        return int(links.asked)

    assert closed(broken=False) == 1
    assert closed(broken=True) == 0


def test_processes_of_a_lab_end_though_its_clients_are_interrupted_while_they_do() -> (
    None
):
    ended: list[str] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    inventory = {"agent": "unix:/none"}
    processes: Any = SimpleNamespace(
        inventory=inventory, stop=lambda: ended.append("processes"), astray=list
    )
    api: Any = SimpleNamespace(close=interrupted)
    links: Any = SimpleNamespace(repeat=lambda *, last: ended.append("links"))
    nothing: Any = None
    lab = emulation.EmulatedLab(
        plan_of(SWITCH + PAIR).setting, processes, api, links, nothing, nothing
    )
    with pytest.raises(KeyboardInterrupt):
        lab.close()
    assert ended == ["links", "processes"]
