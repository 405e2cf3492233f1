"""The acceptance kit without a switch: how items are summed up, gaps told from frames, and the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.controller.optical.errors import Unreachable
from ringlight.controller.optical.model import Identity
from ringlight.extensions.acceptance import numbered_frames
from ringlight.extensions.acceptance.checks import CHECKS
from ringlight.extensions.acceptance.checks.writing import UNSEEN
from ringlight.extensions.acceptance.items import ITEMS
from ringlight.extensions.acceptance.measure import (
    MeasuredStream,
    factory_loss,
    summary,
    two_states,
)
from ringlight.extensions.acceptance.numbered_frames import (
    Arrived,
    Sent,
    gaps,
    interval_of,
)
from ringlight.extensions.acceptance.page import render
from ringlight.extensions.acceptance.runner import (
    CheckOutcome,
    as_document,
    by_item,
    run_check,
)
from ringlight.fabric.crossconnect import CrossConnect, check_matching
from ringlight.testbed.rigs.emulated import last_words
from ringlight.testbed.rigs.rig import Lacks, Recovery, Rig
from tests.unit.test_cli import ringlight


class Ports(Rig):
    """A rig of so many pairs of ports and nothing else."""

    def __init__(self, pairs: int) -> None:
        self.inputs, self.outputs = range(1, pairs + 1), range(pairs + 1, 2 * pairs + 1)
        self.hosts = {}

    close = driver = truth = external_connect = wipe = writes = None  # type: ignore[assignment]


Ports.__abstractmethods__ = frozenset()


def test_every_item_has_a_check() -> None:
    assert list(ITEMS) == list(range(1, 46))
    assert {item for check in CHECKS for item in check.items} == ITEMS.keys()
    assert len({check.name for check in CHECKS}) == len(CHECKS)


def test_what_the_maker_measured_is_summed_up() -> None:
    losses = {
        CrossConnect(a, 8 + b): a + b / 10 for a in range(1, 5) for b in range(1, 5)
    }
    driver: Any = SimpleNamespace(
        factory_loss_db=lambda paths: {path: losses[path] for path in paths}
    )
    told = factory_loss(Ports(8), driver)
    assert len(told["circuits"]) == 16
    assert told["circuits"][1] == {"circuit": "1->10", "db": 1.2}
    assert (told["least_db"], told["median_db"], told["most_db"]) == (1.1, 2.75, 4.4)


class Untouched(Ports):
    """A rig of a switch that does as it is told and cannot be restarted."""

    recoveries: ClassVar[Sequence[Recovery]] = ()

    def __init__(self, driver: Any) -> None:
        super().__init__(8)
        self.stands: set[CrossConnect] = set()
        self.driver = lambda direct=False: driver  # type: ignore[assignment, method-assign]

    def change(self, driver: Any, wanted: Any, *more: Any, **options: Any) -> Any:
        self.stands = set(wanted)

    def wipe(self) -> None:
        self.stands = set()

    def truth(self) -> set[CrossConnect]:
        return self.stands

    standing = lambda self, driver: self.stands  # type: ignore[assignment]  # noqa: E731
    writes = lambda self: []  # type: ignore[assignment]  # noqa: E731


def outcomes(item: int, **of_driver: Any) -> dict[str, CheckOutcome]:
    """Outcomes of the checks of an item on such a rig."""
    driver = SimpleNamespace(
        **({"open": lambda: None, "close": lambda: None, "alarms": tuple} | of_driver),
        snapshot=lambda: SimpleNamespace(cross_connects={}),
    )
    return {
        check.name: run_check(Untouched(driver), check)
        for check in CHECKS
        if item in check.items
    }


@pytest.mark.parametrize("recoveries", [(), ("MAINTAIN",)])
def test_a_switch_that_was_not_restarted_has_no_green_item_43(
    recoveries: tuple[Recovery, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Untouched, "recoveries", recoveries)
    found = outcomes(43)
    assert {(one.state, one.text) for one in found.values()} == {
        ("skipped", "a switch that may be restarted")
    }


def test_an_identity_without_a_version_is_named_and_a_default_is_unknown() -> None:
    def stated(**parts: str) -> CheckOutcome:
        return outcomes(1, open=lambda: Identity("V", "M", **parts))[
            "it_says_who_it_is"
        ]

    assert stated().state == "green"
    empty = stated(version="")
    assert empty.state == "failed"
    assert empty.text.startswith(
        "the Identity of SimpleNamespace has an empty version; return unknown"
    )


def test_an_error_that_no_driver_should_raise_is_shown_with_its_place() -> None:
    def opened() -> None:
        raise AttributeError("no _name")

    (found,) = {one.text for one in outcomes(3, open=opened).values()}
    assert found.startswith(f"AttributeError: no _name ({__file__}, line ")
    assert found.endswith(", in opened)")


def test_a_rig_that_takes_no_request_for_a_write_is_named_and_not_the_driver() -> None:
    can = SimpleNamespace(max_remove=0, max_batch=64)
    (many,) = outcomes(8, capabilities=lambda: can).values()
    assert (many.state, many.text) == (
        "failed",
        f"writes for 8 cross-connects: {UNSEEN}",
    )
    (order,) = outcomes(24).values()
    assert (order.state, order.text) == ("failed", f"writes for a swap: {UNSEEN}")


def test_a_write_that_is_no_addition_and_no_removal_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Untouched, "addition", "add", raising=False)
    monkeypatch.setattr(Untouched, "removal", "sub", raising=False)
    monkeypatch.setattr(Untouched, "writes", lambda self: ["CONNECT 1 9"])
    (order,) = outcomes(24).values()
    assert order.state == "skipped"
    assert (
        "'CONNECT 1 9' matches neither `addition` nor `removal` of Untouched"
        in order.text
    )


def test_a_switch_that_has_ended_is_the_reason_for_what_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        Untouched, "ended", lambda self: "the emulated switch has ended: KeyError: 'X'"
    )

    def unreachable() -> None:
        raise Unreachable("the switch has ended the connection")

    found = [*outcomes(24).values(), *outcomes(3, open=unreachable).values()]
    assert {(one.state, one.text) for one in found} == {
        ("failed", "the emulated switch has ended: KeyError: 'X'")
    }


def test_the_last_words_of_a_process_have_their_place() -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\n'
    trace += '  File "b.py", line 2, in g\n    x\nKeyError: 5\n'
    assert last_words(f"ready\n{trace}") == 'KeyError: 5 (File "b.py", line 2, in g)'
    assert last_words("ready\nthe end\n") == "the end"
    assert last_words("") == "it has said nothing"


def test_an_item_is_as_bad_as_its_worst_check() -> None:
    found = by_item(
        [
            CheckOutcome("a", (1, 2), "green"),
            CheckOutcome("b", (2, 3), "failed", "it did not"),
            CheckOutcome("c", (1, 4), "skipped", "lasers"),
        ]
    )
    assert [found[n].state for n in (1, 2, 3, 4)] == [
        "green",
        "failed",
        "failed",
        "skipped",
    ]
    assert [found[n].text for n in (1, 2, 4, 5)] == [
        "lasers",
        "it did not",
        "lasers",
        "a check",
    ]


def sent(count: int, pace: int = 100, took: int = 5) -> Sent:
    before = np.arange(1, count + 1, dtype=np.int64) * pace
    return Sent(before, before + took, 60)


def arrived(numbers: list[int], sent: Sent, delay: int = 20) -> Arrived:
    chosen = np.array(numbers, dtype=np.int64)
    return Arrived(chosen, sent.before[chosen] + delay)


@given(st.integers(3, 40), st.data())
def test_a_gap_holds_the_dark_time(count: int, data: st.DataObject) -> None:
    """Light goes and comes back at any moment between frames; what arrives bounds both."""
    stream = sent(count)
    first = data.draw(st.integers(1, count - 2))
    last = data.draw(st.integers(first, count - 2))
    gone = data.draw(
        st.integers(int(stream.after[first - 1]), int(stream.before[first]))
    )
    back = data.draw(st.integers(int(stream.after[last]), int(stream.before[last + 1])))
    through = [n for n in range(count) if not first <= n <= last]
    (gap,) = gaps(stream, arrived(data.draw(st.permutations(through)), stream))
    assert (gap.first, gap.last) == (first, last)
    assert gap.least_s * 1e9 <= back - gone + 0.5
    assert back - gone <= gap.most_s * 1e9 + 0.5
    assert gap.gone[0] <= gone <= gap.gone[1]
    assert gap.back[0] <= back <= gap.back[1]


def test_what_is_lost_at_the_ends_is_no_gap() -> None:
    stream = sent(10)
    assert gaps(stream, arrived([2, 3, 4], stream)) == []
    assert gaps(stream, arrived([], stream)) == []


def test_the_first_frame_at_a_new_port_tells_when_light_came() -> None:
    stream = sent(10)
    there = MeasuredStream(
        stream, {1: arrived([0, 1, 2], stream), 2: arrived([6, 7, 8, 9], stream)}
    )
    # Frame 5 was lost, frame 6 came: light was there after 5 had left and before 6 arrived.
    assert there.first_at(2, since=350) == (600, 720)
    assert there.first_at(1, since=400) is None
    (gap,) = there.gaps()
    assert (gap.first, gap.last) == (3, 5)


@given(st.integers(1, 50))
def test_from_one_state_to_the_other_every_circuit_moves(count: int) -> None:
    rig = Ports(50)
    first, second = two_states(rig, count)
    assert len(check_matching(first)) == len(check_matching(second)) == count
    assert not first & second
    assert CrossConnect(1, 52) in first
    assert CrossConnect(1, 51) in second
    assert count in (1, 3) or CrossConnect(2, 51) in first


def test_more_circuits_than_ports_are_lacked() -> None:
    with pytest.raises(Lacks, match="160 pairs of ports"):
        two_states(Ports(8), 160)


@pytest.mark.parametrize(
    ("says", "complaint"),
    [
        ("exec sleep 60", "is not at work after 0.3 s"),
        ("exit 3", "ended with 3"),
        ("echo no; exec sleep 60", "end within"),
    ],
)
def test_a_stream_whose_process_does_not_begin_is_not_waited_for(
    says: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o700)
    monkeypatch.setattr(numbered_frames.sys, "executable", str(program))
    monkeypatch.setattr(numbered_frames, "START_S", 0.3)
    monkeypatch.setattr(numbered_frames, "END_S", 0.3)
    host: Any = SimpleNamespace(namespace=None, interface="eth0")
    stream = numbered_frames.Traffic({1: host}, (), (1,), interval_s=0.001)
    with pytest.raises(RuntimeError, match=complaint), stream:
        pass
    assert [process.poll() is None for process in stream._processes.values()] == [False]


def test_a_gigabit_has_so_many_frames() -> None:
    assert interval_of(1476, 1e9) == pytest.approx(12e-6)


DARK: dict[str, Any] = {
    "declared_s": {"least": 0.03, "typical": 0.0325, "most": 0.035},
    "measured": summary([0.031, 0.033]),
    "outside_declared": summary([0.0, 0.0]),
    "driver": summary([0.05]),
    "samples": [
        {"change": 0, "way": 1, "least_s": 0.0309, "most_s": 0.0311, "driver_s": 0.05}
    ],
}
LIGHT = {
    "light": summary([0.04, 0.05]),
    "answer": summary([0.06]),
    "samples_s": [0.04, 0.05],
}


def document(*names: str, failed: bool = False) -> dict[str, Any]:
    outcomes = [
        CheckOutcome(
            "adding",
            (7, 9),
            "failed" if failed else "green",
            "not <done>" if failed else "",
        ),
        CheckOutcome("power", (39,), "skipped", "power meters"),
    ]
    switch = {
        "identity": {"vendor": "ACME & Sons"},
        "ports": {"ingress": 8, "egress": 7},
        "seconds": 1.0,
    }
    measured = {
        "dark_time": DARK,
        "command_to_light_1": LIGHT,
        "insertion_loss": {"lacks": "power meters"},
    }
    switches = [
        {"name": name, **switch, **as_document(outcomes), "measured": measured}
        for name in names
    ]
    return {
        "acceptance": 1,
        "at": "2026-11-23T13:00:00Z",
        "machine": {"kernel": "6"},
        "switches": switches,
    }


def test_the_page_says_what_is_in_the_document(tmp_path: Path) -> None:
    page = render(document("one"), tmp_path)
    for words in (
        "one: no item of the conformance list failed",
        "ACME &amp; Sons",
        "30 to 35 ms",
        "32 ms",
    ):
        assert words in page, words
    assert "lacks power meters (item 39)" in page
    # Each picture once for wide screens and once for narrow ones.
    assert page.count("<svg") == 2 * 2
    page = render(document("one", "two", failed=True), tmp_path)
    assert "2 optical switches: 4 items failed" in page
    assert "not &lt;done&gt; (item 7, 9)" in page


def test_two_folders_are_compared_on_one_page(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "acceptance.json").write_text(json.dumps(document(name)))
    folders = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert (
        ringlight(
            "ocs", "compare", *folders, "--out", str(tmp_path / "both")
        ).returncode
        == 0
    )
    both = json.loads((tmp_path / "both" / "acceptance.json").read_text())
    assert [switch["name"] for switch in both["switches"]] == ["one", "two"]
    assert "2 optical switches" in (tmp_path / "both" / "index.html").read_text()
    for words, said in (
        ([folders[0], folders[0]], "two of them are called one"),
        ([str(tmp_path / "none")], "none: No such file or directory"),
        (
            [str(tmp_path / "both" / "index.html")],
            "is not what conformance --out writes",
        ),
    ):
        done = ringlight("ocs", "compare", *words, "--out", str(tmp_path / "out"))
        assert done.returncode == 2
        assert said in done.stderr
        assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_done(
    tmp_path: Path,
) -> None:
    (tmp_path / "one.json").write_text(json.dumps(document("one")))
    (tmp_path / "file").write_text("")
    target = [
        "--target",
        "127.0.0.1:1",
        "--driver",
        "scpi",
        "--size",
        "8",
        "--read-only",
    ]
    for command in (["compare", str(tmp_path / "one.json")], ["conformance", *target]):
        done = ringlight("ocs", *command, "--out", str(tmp_path / "file"))
        assert done.returncode == 2
        assert (
            done.stderr.splitlines()[-1]
            == f"ringlight: --out: {tmp_path / 'file'}: File exists"
        )


def test_what_is_compared_has_names(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(
        json.dumps({**document("one"), "switches": [{}]})
    )
    done = ringlight(
        "ocs", "compare", str(tmp_path / "one.json"), "--out", str(tmp_path / "out")
    )
    assert done.returncode == 2
    assert "is not what conformance --out writes" in done.stderr
    assert not (tmp_path / "out").exists()
