"""Averagers of OptINC with servers around them: right to the bit, or a line that says whose fault it is."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.extensions.optinc.integration.averager_rig import (
    PORT,
    Averager,
    Links,
    Plan,
    Servers,
    averaging,
    codes_of_all,
    digest,
    expected,
    hub_of,
    links,
    serving,
)

pytestmark = pytest.mark.root

RANKS = 4
RATE_BPS = 100e6
#: A collective of 4 Mi values takes a third of a second at this rate.
LONG = 4 * 2**20
#: Four times as many, for a test that is held up before it breaks something.
LONGER = 16 * 2**20
#: Seconds; an averager's limit is shorter than a server's, so that it can say whose fault it is.
AVERAGER_SILENCE_S, SILENCE_S = 1.0, 1.5
#: Whatever is wrong must have been told after this time, seconds: three times what a user is promised, as a
#: busy machine takes its time to start the servers.
TOLD_S = 15.0


@pytest.fixture(scope="module")
def wires() -> Iterator[Links]:
    with links(RANKS, RATE_BPS) as found:
        yield found


@pytest.fixture
def averager(wires: Links, tmp_path: Path) -> Iterator[Averager]:
    arguments = ("--listen", f"0.0.0.0:{PORT}", "--bits", "8", "--servers", str(RANKS))
    limit = ("--silence", str(AVERAGER_SILENCE_S))
    with averaging(tmp_path, "averager", wires.averager, *arguments, *limit) as found:
        yield found


def plans_of(wires: Links, directory: Path, *sizes: int) -> list[Plan]:
    hub = str(directory / "hub")
    return [
        Plan(
            rank,
            RANKS,
            RANKS,
            wires.address(rank),
            PORT,
            hub,
            sizes,
            silence_s=SILENCE_S,
        )
        for rank in range(RANKS)
    ]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[None]:
    with hub_of(tmp_path, RANKS):
        yield


def check(plan: Plan, servers: Servers) -> list[dict]:
    """All ranks have the means of the reference; what they said."""
    answers = servers.answers()
    assert not [answer["failed"] for answer in answers if "failed" in answer]
    wanted = [digest(expected(plan, number)) for number in range(len(plan.sizes))]
    assert [answer["digests"] for answer in answers] == [wanted] * plan.ranks
    return answers


def until_moving(wires: Links, rank: int, count: int = 500_000) -> None:
    """Until a server has sent so many bytes."""
    before, deadline = wires.bytes_of(rank)[0], time.monotonic() + 30
    while wires.bytes_of(rank)[0] < before + count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def failures(
    servers: Servers, since: float, but: int | None = None
) -> set[tuple[int | None, str]]:
    """The ranks and causes that servers have told, all in time."""
    answers = servers.answers(but=but)
    assert all("failed" in answer for answer in answers), answers
    assert max(answer["at"] for answer in answers) - since < TOLD_S
    return {(answer["rank"], answer["failed"]) for answer in answers}


@pytest.mark.usefixtures("hub")
def test_all_ranks_get_the_reference_and_the_wire_carries_little_more(
    wires: Links, averager: Averager, tmp_path: Path
) -> None:
    plans = plans_of(wires, tmp_path, 2**21, 1, 50_000, 2**21)
    before = [wires.bytes_of(rank) for rank in range(RANKS)]
    with serving(plans, wires.servers) as servers:
        answers = check(plans[0], servers)
    payload = sum(plans[0].sizes)
    for rank in range(RANKS):
        for sent, earlier in zip(wires.bytes_of(rank), before[rank], strict=True):
            assert payload < sent - earlier <= 1.02 * payload
    status = averager.stop()
    assert status["table"]["inputs"] == 28_561
    assert status["table"]["wrong"] == 0
    assert not status["errors"]
    assert status["codes"] == payload
    assert status["checked"] > 0
    assert status["bytes_in"] == [answer["moved"]["bytes_sent"] for answer in answers]
    assert status["bytes_out"] == [
        answer["moved"]["bytes_received"] for answer in answers
    ]
    assert 0 < status["cpu_s"] < status["wall_s"]
    assert 0 < status["latency_s"]["median"] <= status["latency_s"]["max"]
    # No faster than the links: they are what was measured.
    seconds = answers[0]["spans"][3][1] - answers[0]["spans"][3][0]
    assert seconds > 0.9 * 2**21 * 8 / RATE_BPS


@pytest.mark.usefixtures("hub")
def test_an_averager_killed_in_mid_collective_and_started_again_does_no_harm(
    wires: Links, averager: Averager, tmp_path: Path
) -> None:
    plans = plans_of(wires, tmp_path, 100, LONG, 2**19)
    with serving(plans, wires.servers) as servers:
        until_moving(wires, 1)
        averager.restart()
        answers = check(plans[0], servers)
    assert all(answer["moved"]["reconnected"] >= 1 for answer in answers)
    # On a busy machine one may have nothing under way just then.
    assert any(answer["moved"]["frames_again"] >= 1 for answer in answers)
    # Only what had no answer was sent again, and no whole collective.
    assert all(
        answer["moved"]["bytes_sent"] < LONG + 2**19 + 2**20 for answer in answers
    )


@pytest.mark.usefixtures("hub")
def test_an_averager_that_is_gone_is_told_in_time(
    wires: Links, averager: Averager, tmp_path: Path
) -> None:
    with serving(plans_of(wires, tmp_path, LONGER), wires.servers) as servers:
        until_moving(wires, 1)
        averager.kill()
        told = failures(servers, time.monotonic())
    assert all(
        rank is None and "the averager at 10.7." in cause for rank, cause in told
    )
    assert all(
        "Connection refused" in cause and "not back in 1.5 s" in cause
        for _, cause in told
    )


@pytest.mark.usefixtures("hub")
def test_an_averager_that_hangs_is_told_in_time(
    wires: Links, averager: Averager, tmp_path: Path
) -> None:
    with serving(plans_of(wires, tmp_path, LONGER), wires.servers) as servers:
        until_moving(wires, 1)
        averager.process.send_signal(signal.SIGSTOP)
        told = failures(servers, time.monotonic())
    assert all(rank is None and "silent for 1.5 s" in cause for rank, cause in told)


@pytest.mark.usefixtures("hub")
def test_a_server_that_hangs_is_named_to_all_others(
    wires: Links, averager: Averager, tmp_path: Path
) -> None:
    with serving(plans_of(wires, tmp_path, LONGER), wires.servers) as servers:
        until_moving(wires, 2)
        servers.processes[2].send_signal(signal.SIGSTOP)
        told = failures(servers, time.monotonic(), but=2)
    ((rank, cause),) = told
    assert rank == 2
    assert cause in (
        "rank 2: silent for 1 s while others wait",
        "rank 2: has read no answer for 1 s",
    )
    assert averager.stop()["errors"] == [cause]


@pytest.mark.usefixtures("hub")
def test_a_server_that_dies_is_named_to_all_others(
    wires: Links, averager: Averager, tmp_path: Path
) -> None:
    with serving(plans_of(wires, tmp_path, LONGER), wires.servers) as servers:
        until_moving(wires, 2)
        servers.processes[2].kill()
        told = failures(servers, time.monotonic(), but=2)
    ((rank, cause),) = told
    assert rank == 2
    assert cause.startswith("rank 2: not connected 1 s after the first (rank 2: ")


@pytest.mark.usefixtures("hub", "averager")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_averaged_by_nobody(
    wires: Links, tmp_path: Path, value: float
) -> None:
    plans = plans_of(wires, tmp_path, 5000, 5000)
    plans[1] = dataclasses.replace(plans[1], bad=(1, 4321, value))
    began = time.monotonic()
    with serving(plans, wires.servers) as servers:
        told = failures(servers, began)
    assert told == {
        (1, f"rank 1: value 4321 is {value}: only finite values can be averaged")
    }


@pytest.mark.usefixtures("hub", "averager")
@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (
            {"block": 512},
            "rank 2 has blocks of 512 values in frames of 26624, others have blocks of 1024",
        ),
        (
            {"bits": 7},
            "rank 2: codes of 7 bits with 1 parts of the last symbol, not 8 with 1",
        ),
        (
            {"frame": 2048},
            "rank 2 has blocks of 1024 values in frames of 2048, others have blocks of 1024",
        ),
        (
            {"sizes": (999,)},
            "rank 2: has 999 values of 8 bits in blocks of 1024, but rank",
        ),
    ],
)
def test_a_rank_that_codes_otherwise_is_named(
    wires: Links, tmp_path: Path, change: dict, cause: str
) -> None:
    plans = plans_of(wires, tmp_path, 1000)
    plans[2] = dataclasses.replace(plans[2], **change)
    began = time.monotonic()
    with serving(plans, wires.servers) as servers:
        told = failures(servers, began)
    # With another number of values each rank finds another odd one out: the others' is rank 2.
    assert any(rank == 2 and text.startswith(cause) for rank, text in told)
    assert "sizes" in change or len(told) == 1


def cascade(stack: ExitStack, directory: Path, *, decimals: bool) -> list[Averager]:
    """Five averagers on the loopback, the one above first."""
    parts = "4" if decimals else "1"
    # Twenty-one processes start on few processors: nobody is given up soon.
    coding = (
        "--bits",
        "8",
        "--servers",
        "4",
        "--listen",
        "127.0.0.1:0",
        "--silence",
        "20",
    )
    above = stack.enter_context(
        averaging(directory, "above", None, *coding, "--of-units", "--arriving", parts)
    )
    address = ":".join(map(str, above.status()["listen"]))
    place = ("--above", address, "--units", "4", "--leaving", parts)
    return [
        above,
        *(
            stack.enter_context(
                averaging(
                    *(directory, f"unit{unit}", None, *coding, *place),
                    *("--unit", str(unit), "--first-rank", str(4 * unit)),
                )
            )
            for unit in range(4)
        ),
    ]


def plans_of_16(units: list[Averager], directory: Path, *sizes: int) -> list[Plan]:
    hub = str(directory / "hub")
    return [
        Plan(
            rank,
            16,
            4,
            *units[1 + rank // 4].status()["listen"],
            hub,
            sizes,
            silence_s=30,
        )
        for rank in range(16)
    ]


def test_sixteen_servers_on_five_averagers_get_equation_8(tmp_path: Path) -> None:
    with ExitStack() as stack:
        units = cascade(stack, tmp_path, decimals=True)
        stack.enter_context(hub_of(tmp_path, 16))
        plans = plans_of_16(units, tmp_path, 2**17, 12_345)
        check(plans[0], stack.enter_context(serving(plans)))
        up = units[1].status()
        assert not any(unit.stop()["errors"] for unit in units)
    assert up["table"]["wrong"] == 0


def test_without_decimals_they_get_equation_9_which_is_wrong_in_28_percent(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        units = cascade(stack, tmp_path, decimals=False)
        stack.enter_context(hub_of(tmp_path, 16))
        plans = plans_of_16(units, tmp_path, 2**17)
        plans[0] = dataclasses.replace(plans[0], keep=str(tmp_path / "mean.npy"))
        answers = stack.enter_context(serving(plans)).answers()
    wanted = expected(plans[0], 0, equation_9=True)
    assert {digest for answer in answers for digest in answer["digests"]} == {
        digest(wanted)
    }
    got = np.load(tmp_path / "mean.npy")
    wrong = float((got != expected(plans[0], 0)).mean())
    assert wrong == pytest.approx(0.28, abs=0.01)
    # By one step of the code, and never more.
    _, shared = codes_of_all(plans[0], 0)
    steps = np.repeat(np.ldexp(1.0, shared.astype(int) - 7), plans[0].block)
    assert set(np.round((got - expected(plans[0], 0)) / steps)) == {-1.0, 0.0}


@pytest.mark.parametrize("killed", [0, 2])
def test_any_of_five_averagers_may_be_killed_and_started_again(
    tmp_path: Path, killed: int
) -> None:
    with ExitStack() as stack:
        units = cascade(stack, tmp_path, decimals=True)
        stack.enter_context(hub_of(tmp_path, 16))
        plans = plans_of_16(units, tmp_path, *[2**18] * 12)
        servers = stack.enter_context(serving(plans))
        deadline = time.monotonic() + 60
        while units[killed].status()["frames"] < 4:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        units[killed].restart()
        answers = check(plans[0], servers)
    assert all(answer["moved"]["reconnected"] >= 1 for answer in answers)


def test_an_averager_that_cannot_be_ends_with_one_line(tmp_path: Path) -> None:
    def said(*arguments: str) -> str:
        command = [
            sys.executable,
            "-m",
            "ringlight.extensions.optinc.emulated",
            "--name",
            "a",
            "--listen",
            "127.0.0.1:0",
        ]
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        return done.stderr

    assert (
        said("--bits", "17", "--servers", "4")
        == "averager a: 17 bits: 2 to 16 are possible\n"
    )
    bad = tmp_path / "w.npz"
    bad.write_bytes(os.urandom(100))
    assert said("--bits", "8", "--servers", "4", "--weights", str(bad)).startswith(
        f"averager a: {bad}: no weights"
    )
