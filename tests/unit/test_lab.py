"""Names, labels and locks of labs; the pure parts of the testbed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.responses import JSONResponse
from hypothesis import given
from hypothesis import strategies as st

from ringlight.experiments.client import Api, Unreachable
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed import lab, standing_labs
from ringlight.testbed.addresses import Addresses
from ringlight.testbed.emulation import clean, testbed
from ringlight.testbed.emulation.agent.files import (
    make_worker_directory,
    parse_event,
    read_from,
    write_whole,
)
from ringlight.testbed.emulation.buildable import check_fabric, check_names, check_rates
from ringlight.testbed.emulation.kernel import shaping
from ringlight.testbed.emulation.namespace_hosts import readable_by_others
from ringlight.testbed.emulation.scale import Emulation
from ringlight.testbed.emulation.worker_hosts import Outcome, describe
from ringlight.testbed.lab import Lab, LabError
from ringlight.testbed.processes import LabProcesses

IDS = st.from_regex(r"[a-z0-9]{3,4}", fullmatch=True)
NODES = st.from_regex(r"[a-z][a-z0-9-]{0,11}", fullmatch=True)


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lab, "STATE_ROOT", tmp_path / "labs")
    monkeypatch.setattr(clean, "STATE_ROOT", tmp_path / "labs")
    return tmp_path


@given(IDS, NODES, st.integers(0, 4096))
def test_names_fit_the_kernel_and_carry_the_label(
    identity: str, node: str, port: int
) -> None:
    made = Lab(identity)
    for name in (made.interface(node, port), made.bridge(node)):
        assert len(name) <= lab.INTERFACE_NAME_MAX
        assert name.startswith(f"rl{identity}-")


@given(IDS, st.sets(st.tuples(NODES, st.integers(0, 4096)), min_size=2, max_size=40))
def test_ports_have_names_of_their_own(
    identity: str, ports: set[tuple[str, int]]
) -> None:
    # Two nodes may spell one name (a, port 1-2 cannot be): only the fabric's distinct "node-port" count.
    texts = {f"{node}-{port}" for node, port in ports}
    assert len({Lab(identity).interface(node, port) for node, port in ports}) == len(
        texts
    )


@given(IDS, IDS)
def test_link_groups_of_two_labs_differ(a: str, b: str) -> None:
    assert (Lab(a).link_group == Lab(b).link_group) == (a == b)
    assert 0 < Lab(a).link_group < 1 << 31


@pytest.mark.parametrize("bad", ["", "ab", "abcde", "Ab1", "a-b", "../x", "ab\n"])
def test_a_bad_id_is_refused(bad: str) -> None:
    with pytest.raises(LabError, match="lab id"):
        Lab(bad)


def test_one_owner_many_holders(roots: Path) -> None:
    made = Lab("abc")
    assert not made.is_alive()
    with made.hold(), made.hold():
        assert made.is_alive()
        with made.own(), pytest.raises(LabError, match="lab abc is already in use"):
            made.own()
    assert not made.is_alive()
    with made.own():
        assert made.is_alive()


def test_stale_is_what_was_held_and_is_no_more(roots: Path) -> None:
    made = Lab("abc")
    made.make_state_dir()
    assert not clean.is_stale(made), "nobody ever held it"
    with made.hold():
        assert not clean.is_stale(made)
    assert clean.is_stale(made)


def test_what_another_removes_at_the_same_time_is_no_error(tmp_path: Path) -> None:
    """One ends its lab, and a lab that comes up takes it for a dead one's."""
    for number in range(100):
        state = tmp_path / str(number)
        state.mkdir()
        for name in range(20):
            (state / str(name)).touch()
        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(clean.remove_tree, state) for _ in range(2)]
        assert any(one.result() for one in done)
        assert not state.exists()


def test_a_bucket_holds_one_frame_and_the_timer_lateness() -> None:
    assert shaping.bucket_bytes(100e6) == 9014 + 2500
    assert shaping.queue_bytes(100e6, 0.02) == 250_000
    assert shaping.queue_bytes(1e6, 0.001) == 2 * 9014, "two frames at least"


def test_scaling_keeps_the_ratio_of_rate_and_time() -> None:
    emulation = Emulation(time_dilation=2, payload_scale=400)
    assert emulation.rate_bps(40e9) == 50e6
    assert emulation.seconds(0.02) == 0.04


@pytest.mark.parametrize(("scale", "text"), [(1, "raise"), (1e7, "lower")])
def test_a_rate_that_cannot_be_shaped_is_refused(scale: float, text: str) -> None:
    spec = FabricSpec.model_validate(
        {
            "servers": {"s0": {"gpus": {"g0": "x"}}},
            "packet_switches": {"tor0": {"ports": 1}},
            "links": [{"ends": ["g0", "tor0:1"], "rate": "40 Gbit/s"}],
        }
    )
    check_rates(build_fabric(spec), 400)
    with pytest.raises(
        ValueError, match=rf"links\[0\]: 40 Gbit/s is emulated at .*; {text} the time"
    ):
        check_rates(build_fabric(spec), scale)


def test_two_gpus_cannot_be_plugged_into_each_other() -> None:
    spec = FabricSpec.model_validate(
        {
            "servers": {"s0": {"gpus": {"g0": "x", "g1": "x"}}},
            "packet_switches": {"tor0": {"ports": 1}},
            "links": [{"ends": ["g0", "g1"], "rate": "1 Gbit/s"}],
        }
    )
    with pytest.raises(ValueError, match=r"links\[0\]: g0:0 and g1:0 are both GPUs"):
        check_fabric(build_fabric(spec))


def test_a_switch_called_like_another_ones_port_is_refused() -> None:
    spec = FabricSpec.model_validate(
        {
            "servers": {"s0": {"gpus": {"g0": "x"}}},
            "packet_switches": {"a": {"ports": 1}, "a-1": {"ports": 1}},
            "links": [{"ends": ["a:1", "a-1:1"], "rate": "1 Gbit/s"}],
        }
    )
    with pytest.raises(ValueError, match="a-1 and a:1 would both be called rlabc-a-1"):
        check_names(Lab("abc"), build_fabric(spec))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[1]",
        b'{"t": 1}',
        b'{"event": 3}',
        b"\xff",
        b"[" * 100_000,
        b'{"event": "x", "v": 1e999}',
    ],
)
def test_what_is_no_event_is_none(line: bytes) -> None:
    assert parse_event(line) is None


def test_an_event() -> None:
    assert parse_event(b'{"t": 1.5, "event": "ready"}') == {"t": 1.5, "event": "ready"}


def test_the_loss_of_a_training_that_diverges_is_none() -> None:
    event = b'{"event": "iteration", "loss": NaN, "others": [Infinity, -Infinity, 2.5]}'
    assert parse_event(event) == {
        "event": "iteration",
        "loss": None,
        "others": [None, None, 2.5],
    }


def test_half_a_character_is_told_as_a_question_mark() -> None:
    assert parse_event(b'{"event": "failed", "reason": "no file \\udcff"}') == {
        "event": "failed",
        "reason": "no file ?",
    }


def test_no_event_is_too_deep_to_be_told_on() -> None:
    depths = range(sys.getrecursionlimit() - 300, sys.getrecursionlimit() + 1)
    for event in (
        parse_event(b'{"event": "x", "v": ' + b"[" * n + b"]" * n + b"}")
        for n in depths
    ):
        JSONResponse({"events": [event]})


def test_a_worker_cannot_make_the_agent_read_another_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError):
            read_from(tmp_path / name, 0)
    assert read_from(tmp_path / "secret", 2) == b"cret\n"


def test_a_worker_cannot_make_the_agent_write_another_file(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("as it was")
    (tmp_path / "go").symlink_to(tmp_path / "other")
    write_whole(tmp_path / "go", b"new")
    assert (tmp_path / "other").read_text() == "as it was"
    assert (tmp_path / "go").read_text() == "new"


def test_a_used_worker_directory_is_kept_under_another_name(tmp_path: Path) -> None:
    for number in range(3):
        make_worker_directory(tmp_path / "red-0", {"seed": number}, os.getuid())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["red-0", "red-0.1", "red-0.2"]
    assert json.loads((tmp_path / "red-0.2" / "spec.json").read_text()) == {"seed": 1}
    assert (tmp_path / "red-0").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome(1, None, False, None, "a\nboom\n"), "exit code 1; it said: boom"),
        (Outcome(None, 9, False, None, ""), "killed by SIGKILL"),
        (Outcome(None, 9, True, None, ""), "it ran out of memory"),
        (Outcome(None, 99, False, None, ""), "killed by signal 99"),
        (
            Outcome(None, None, False, "Docker does not answer", ""),
            "Docker does not answer",
        ),
    ],
)
def test_an_end_in_words(outcome: Outcome, text: str) -> None:
    assert describe(outcome) == text


def test_readable_by_others_looks_at_every_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed" / "file").touch(mode=0o644)
    assert not readable_by_others(tmp_path / "closed" / "file")
    (tmp_path / "link").symlink_to(tmp_path / "closed" / "file")
    assert not readable_by_others(tmp_path / "link")


def test_what_a_dead_owner_left_beside_a_testbed_that_ended_is_stale(
    roots: Path,
) -> None:
    """A killed ``shell`` ends its testbed, which removes its own files and not those of the dead."""
    made = Lab("abc")
    made.hold().close()
    made.own().close()
    raw = {
        "servers": {"s0": {"gpus": {"g0": "m"}}},
        "packet_switches": {"tor0": {"ports": 1}},
        "links": [{"ends": ["g0", "tor0:1"], "rate": "1 Gbit/s"}],
    }
    fabric = build_fabric(FabricSpec.model_validate(raw))
    owner = testbed.Testbed(
        testbed.Settings(lab=made, fabric=fabric, state=made.state_dir)
    )
    (made.state_dir / "controller.log").touch()
    owner._remove_state()
    assert clean.is_stale(made)
    (made.state_dir / "controller.log").unlink()
    owner._remove_state()
    assert not made.state_dir.exists()


def test_who_finds_no_controller_is_told_what_helps(
    roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing_labs, "STATE_ROOT", lab.STATE_ROOT)
    anew = "start one with: ringlight up SCENARIO"
    assert standing_labs.what_helps("127.0.0.1:8080") == anew
    made = Lab("abc")
    with made.hold():
        known = {"rest": "127.0.0.1:8080", "logs": "/logs", "pids": {}}
        (made.state_dir / "standing.json").write_text(json.dumps(known))
        back = "lab abc is starting it again: try again in some seconds, or read /logs/controller.log"
        assert standing_labs.what_helps("127.0.0.1:8080") == back
        assert standing_labs.what_helps("127.0.0.1:8081") == anew
    gone = (
        "the testbed of lab abc has ended; remove what is left with: ringlight down abc"
    )
    assert standing_labs.what_helps("127.0.0.1:8080") == gone
    assert [one.id for one in standing_labs.dead_labs()] == ["abc"]


def test_who_waits_for_a_controller_that_stands_still_is_told_so(
    roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing_labs, "STATE_ROOT", lab.STATE_ROOT)
    made = Lab("abc")
    with (
        made.hold(),
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen(["sleep", "60"]) as controller,
    ):
        try:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            known = {"rest": address, "pids": {"controller": controller.pid}}
            (made.state_dir / "standing.json").write_text(json.dumps(known))
            api = Api(address, patience_s=0.1)
            with pytest.raises(Unreachable, match=r"did not answer: timed out$"):
                api.get("/v1/health")
            controller.send_signal(signal.SIGSTOP)
            line = (
                f"; process {controller.pid}, the controller of lab abc, stands still"
            )
            while not standing_labs.standstill(address):
                assert controller.poll() is None
            with pytest.raises(Unreachable, match=line):
                api.get("/v1/health")
        finally:
            controller.kill()


@pytest.mark.parametrize("thread", ["main", "another"])
def test_a_lab_is_ended_from_any_thread_and_handlers_are_as_before(thread: str) -> None:
    of_lab = LabProcesses({}, "namespace", Addresses())
    sleeping = subprocess.Popen(["sleep", "600"])
    of_lab._testbed = sleeping
    handlers = list(
        map(signal.getsignal, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    )
    try:
        if thread == "main":
            of_lab.stop()
        else:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(of_lab.stop).result(60)
        assert sleeping.poll() == -signal.SIGTERM
        assert handlers == list(
            map(signal.getsignal, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        )
    finally:
        sleeping.kill()
        sleeping.wait(10)
