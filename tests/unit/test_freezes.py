"""Processes that stand still: seen in the kernel and by the own clock, reported once, and judged."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ringlight.containers.worker import patience
from ringlight.experiments.analysis.freezes import outside, stalled, standstills
from ringlight.experiments.backends.emulation.astray import Astray as OfLab
from ringlight.experiments.record.events import Iteration
from ringlight.experiments.record.lab_records import (
    ProcessFrozen,
    ProcessThawed,
    SwitchDrifted,
    SwitchMended,
)
from ringlight.testbed import freezes
from ringlight.testbed.addresses import Addresses
from ringlight.testbed.deaths import Death
from ringlight.testbed.emulation.network_watch import Astray
from ringlight.testbed.freezes import (
    FROZEN,
    GAP,
    STOPPED,
    SUSPENDED,
    FreezeWatch,
    Moment,
    Standstills,
    Watched,
    own_standstill,
    stands_still,
    with_children,
)
from ringlight.testbed.processes import LabProcesses


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def _becomes(pid: int, how: str | None) -> bool:
    deadline = time.monotonic() + 10.0
    while stands_still(pid) != how:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_a_stopped_process_stands_still_until_it_goes_on() -> None:
    with sleeper() as process:
        assert stands_still(process.pid) is None
        process.send_signal(signal.SIGSTOP)
        assert _becomes(process.pid, STOPPED)
        process.send_signal(signal.SIGCONT)
        assert _becomes(process.pid, None)
    assert stands_still(process.pid) is None


def test_a_process_whose_control_group_is_frozen_stands_still() -> None:
    groups = Path("/sys/fs/cgroup/freezer")
    if os.geteuid() or not (groups / "cgroup.procs").exists():
        pytest.skip("needs root and the freezer of control groups of the first version")
    group = groups / f"ringlight-test-{os.getpid()}"
    with sleeper() as process:
        group.mkdir()
        try:
            (group / "cgroup.procs").write_text(str(process.pid))
            assert stands_still(process.pid) is None
            (group / "freezer.state").write_text("FROZEN")
            assert _becomes(process.pid, FROZEN)
            (group / "freezer.state").write_text("THAWED")
            assert _becomes(process.pid, None)
        finally:
            (group / "freezer.state").write_text("THAWED")
            process.kill()
            process.wait(10)
            group.rmdir()


def test_the_second_version_of_control_groups_says_it_in_its_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezes, "_V2", (tmp_path,))
    events = tmp_path / "docker" / "one" / "cgroup.events"
    events.parent.mkdir(parents=True)
    events.write_text("populated 1\nfrozen 0\n")
    assert not freezes._froze("0::/docker/one")
    events.write_text("populated 1\nfrozen 1\n")
    assert freezes._froze("0::/docker/one")
    assert not freezes._froze("0::/")


@pytest.mark.parametrize(
    ("kind", "lasts_s", "counts"),
    [
        ("controller", 0.4, False),
        ("controller", 0.6, True),
        ("worker on GPU", 0.4, True),
        ("worker on GPU", 0.2, False),
        # A device of an extension.
        ("mixer", 0.4, True),
        ("mixer", 0.2, False),
    ],
)
def test_a_standstill_counts_from_what_the_work_bears(
    kind: freezes.ProcessKind,
    lasts_s: float,
    counts: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ringlight.fabric.keys.device_words", lambda: ("mixer",))
    looks, still = Standstills(), {(kind, "it"): STOPPED}
    found = [
        *looks.look(10.0, still),
        *looks.look(10.0 + lasts_s, still),
        *looks.look(10.04 + lasts_s, {}),
    ]
    expected = [
        Death(10.0, kind, "it", STOPPED, frozen=True),
        Death(10.04 + lasts_s, kind, "it", frozen=True),
    ]
    assert found == (expected if counts else [])


def test_a_standstill_is_reported_once_while_it_lasts() -> None:
    looks, still = Standstills(), {("controller", "controller"): STOPPED}
    found = [looks.look(t, still) for t in (0.0, 0.3, 0.6, 0.9, 1.2)]  # type: ignore[arg-type]
    assert [len(deaths) for deaths in found] == [0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("now", "how"),
    [
        (Moment(15.2, 1.0, 0.0, 7.0), GAP),
        (Moment(10.3, 1.0, 0.0, 7.0), None),
        # It worked all the time, as what holds Python's lock does.
        (Moment(15.2, 5.9, 0.0, 7.0), None),
        # Others were on the processor.
        (Moment(15.2, 1.0, 4.9, 7.0), None),
        (Moment(10.2, 1.0, 0.0, 12.0), SUSPENDED),
    ],
)
def test_the_own_clock_shows_who_stood_still(now: Moment, how: str | None) -> None:
    found = own_standstill(("runner", "ringlight"), Moment(10.0, 1.0, 0.0, 7.0), now)
    assert [death.how for death in found] == ([] if how is None else [how, None])
    if how == GAP:
        assert [(death.t, death.kind) for death in found] == [
            (10.0, "runner"),
            (15.2, "runner"),
        ]
    if how == SUSPENDED:
        assert found[1].t - found[0].t == pytest.approx(5.0)


def test_what_a_container_has_started_is_watched_by_its_name() -> None:
    watched = [
        Watched("worker on GPU", "g0", 10, True),
        Watched("controller", "controller", 20),
    ]
    found = with_children(watched, {10: [11, 12], 12: [13], 20: [21]})
    assert sorted((one.name, one.pid) for one in found) == [
        ("controller", 20), ("g0", 10), ("g0", 11), ("g0", 12), ("g0", 13),
    ]  # fmt: skip


def test_a_watch_notes_a_stopped_process_while_it_stands_still() -> None:
    noted: list[Death] = []
    with sleeper() as process:
        watched = Watched("controller", "controller", process.pid)
        with FreezeWatch(("runner", "ringlight"), lambda: [watched], noted.append):
            process.send_signal(signal.SIGSTOP)
            _until(lambda: any(death.how == STOPPED for death in noted))
            process.send_signal(signal.SIGCONT)
            _until(
                lambda: any(
                    death.kind == "controller" and death.how is None for death in noted
                )
            )
    of = [death for death in noted if death.kind == "controller"]
    assert [death.how for death in of] == [STOPPED, None]
    assert of[1].t - of[0].t >= freezes.BEARS_S


def _until(true: object) -> None:
    deadline = time.monotonic() + 20.0
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


# -- what a run makes of it


def _frozen(t: float, run: str = "a", name: str = "controller") -> ProcessFrozen:
    return ProcessFrozen(t=t, run=run, kind="controller", name=name, how=STOPPED)


def test_standstills_of_a_process_are_added_up_and_one_that_lasts_counts_to_the_end() -> (
    None
):
    back = ProcessThawed(
        t=3.0, run="a", kind="controller", name="controller", after_s=2.0
    )
    records = [_frozen(1.0), back, _frozen(5.0), replace(back, t=6.5, after_s=1.5)]
    (one,) = standstills(records)
    assert (one.times, one.for_s, one.how) == (2, 3.5, STOPPED)
    (one,) = standstills([_frozen(1.0), replace(back, kind="testbed", t=4.0)])[:1]
    assert one.kind == "testbed"
    lasting = [
        found
        for found in standstills([_frozen(1.0), _frozen(9.0, name="x")])
        if found.times == 1
    ]
    assert [found.for_s for found in lasting] == [8.0, 0.0]


def test_what_belongs_to_no_whole_run_is_kept_apart() -> None:
    records = [_frozen(1.0, run=""), _frozen(2.0, run="a"), _frozen(3.0, run="aside")]
    assert outside(records, [], ["a", "aside"]) == records[:1]


def test_a_rank_without_a_byte_for_longer_than_its_iterations_is_found() -> None:
    def iteration(rank: int, i: int, stall_s: float) -> Iteration:
        return Iteration(
            t=0.0, run="a", job="red", rank=rank, i=i, compute_start=0.0, compute_end=0.1,
            allreduce_end=0.2, max_stall_s=stall_s,
        )  # fmt: skip

    found = [
        iteration(0, 0, 1.2),
        iteration(0, 1, 0.1),
        iteration(1, 0, 3.0),
        iteration(1, 1, 20.0),
    ]
    assert [(one.rank, one.i) for one in stalled(found, 0.2)] == [(1, 1)]
    assert list(stalled(found, 10.0)) == []


def test_bridges_and_ports_are_records_of_their_switch() -> None:
    of_lab = OfLab()
    drift = of_lab.record(
        Death(1.0, "port", "tor0:3", "rlx-tor0-3, to gpu2, was set down"), "a"
    )
    assert isinstance(drift, SwitchDrifted)
    assert drift.sentence == "port 3 of tor0: rlx-tor0-3, to gpu2, was set down"
    mended = of_lab.record(Death(3.5, "port", "tor0:3"), "a")
    assert mended == SwitchMended(
        t=3.5, run="a", switch="tor0", what="port 3", after_s=2.5
    )
    bridge = of_lab.record(Death(1.0, "bridge", "tor0", "rlx-tor0 was deleted"), "a")
    assert isinstance(bridge, SwitchDrifted)
    assert bridge.sentence == "bridge of tor0: rlx-tor0 was deleted"


def test_the_network_is_astray_where_two_looks_say_so() -> None:
    key, how = ("port", "tor0:3"), "rlx-tor0-3, to gpu2, was set down"
    astray = Astray()
    looks = [{}, {key: how}, {}, {key: how}, {key: how}, {key: how}, {}]
    found = [astray.look(look) for look in looks]  # type: ignore[arg-type]
    assert found == [[], [], [], [], [(*key, how)], [], [(*key, None)]]


def test_a_removed_state_directory_ends_a_run_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ringlight.testbed import lab as labs

    monkeypatch.setattr(labs, "STATE_ROOT", tmp_path)
    processes = LabProcesses({}, "namespace", Addresses())
    processes._lock = processes.lab.hold()
    with processes._lock:
        processes.check()
        (processes.state / "lock").unlink()
        processes.state.rmdir()
        with pytest.raises(
            labs.LabError, match=rf"state directory {processes.state} was removed"
        ):
            processes.check()


# -- a worker that stood still


class _Clock:
    """``lasts_s``: how long each poll lasts in place of what was asked, None for as long as asked."""

    def __init__(self, lasts_s: list[float | None]) -> None:
        self.now_s, self._lasts_s = 100.0, lasts_s

    def monotonic(self) -> float:
        return self.now_s

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        lasts_s = self._lasts_s.pop(0) if self._lasts_s else None
        self.now_s += milliseconds / 1000 if lasts_s is None else lasts_s
        return []


@pytest.mark.parametrize(
    ("pauses", "gives_up_after_s"),
    [([], 5.0), ([None, 20.0], 24.0), ([20.0, 20.0], 43.0)],
)
def test_a_pause_of_the_whole_machine_is_no_silence_of_a_peer(
    pauses: list[float | None], gives_up_after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five seconds of silence are borne."""
    clock = _Clock(pauses)
    monkeypatch.setattr(patience, "time", clock)
    waiting = patience.Patience([], 5.0, None)
    waiting._poller = clock  # type: ignore[assignment]
    while waiting._can_go_on([]):
        assert clock.now_s < 200.0
    assert clock.now_s - 100.0 == pytest.approx(gives_up_after_s, abs=0.1)
