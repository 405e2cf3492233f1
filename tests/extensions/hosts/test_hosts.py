"""Hosts for labs: who may be one, certificates for a trial, what is refused before anything starts."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ringlight.extensions.hosts.certificates import make_certificates
from ringlight.extensions.hosts.cluster import Host, hosts_of, name_of, open_doors
from ringlight.extensions.hosts.probe import (
    PROBES,
    Needs,
    Way,
    checked_ways,
    measure,
    misfits,
    rounds,
    start_answering,
)
from ringlight.testbed.lab import LabError


def test_only_tls_may_be_reached_from_other_machines() -> None:
    closed = [
        "tls://10.0.0.1:1",
        "tcp://127.0.0.1:1",
        "tcp://localhost:1",
        "tcp://[::1]:1",
        "inproc://10.0.0.1/1/1",
    ]
    opened = [
        "tcp://10.0.0.1:1",
        "ws://10.0.0.1:1",
        "tcp://[fe80::1]:1",
        "tcp://somewhere:1",
        "tcp://0.0.0.0:1",
    ]
    assert open_doors(closed + opened) == opened


def test_a_scheduler_without_tls_is_refused_by_name() -> None:
    with pytest.raises(
        LabError,
        match=r"^--dask: who reaches tcp://10\.0\.0\.1:8786 .* hosts certificates DIR$",
    ):
        hosts_of("tcp://10.0.0.1:8786").__enter__()


def test_without_certificates_the_command_ends_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    # A process of its own, as what Dask leaves behind shows at the end of the interpreter.
    words = ["hosts", "check", "--dask", "tls://127.0.0.1:1"]
    done = subprocess.run(
        [sys.executable, "-m", "ringlight.experiments.cli.app", *words],
        env={**os.environ, "DASK_CONFIG": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode
    (line,) = done.stderr.splitlines()
    assert line.endswith("hosts certificates DIR, then export DASK_CONFIG=DIR")


def test_the_wait_for_a_scheduler_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("ringlight.extensions.hosts.cluster.ANSWER_S", 3.0)
    with pytest.raises(LabError, match="it does not answer"):
        hosts_of("tcp://127.0.0.1:1").__enter__()
    assert (
        "waiting for the Dask scheduler at tcp://127.0.0.1:1" in capsys.readouterr().err
    )


def test_a_scheduler_without_hosts_says_how_to_start_one() -> None:
    distributed = pytest.importorskip("distributed")
    size = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with distributed.LocalCluster(
        **size, protocol="tcp://", host="127.0.0.1", dashboard_address=None
    ) as local:
        address = local.scheduler_address
        with pytest.raises(
            LabError,
            match=rf"none of its 1 workers is a host.*dask worker {address} --resources HOST=1",
        ):
            hosts_of(address).__enter__()


def test_a_host_is_called_as_its_worker_or_by_its_address() -> None:
    assert name_of("left", "tls://10.0.0.1:5") == "left"
    assert name_of(3, "tls://10.0.0.1:5") == "3"
    assert name_of("tls://10.0.0.1:5", "tls://10.0.0.1:5") == "10.0.0.1:5"
    assert Host("a", "tls://10.0.0.1:5", 1).ip == "10.0.0.1"


def test_certificates_are_for_their_owner_and_bind_all_of_dask(tmp_path: Path) -> None:
    dask_config = pytest.importorskip("dask.config")
    security = pytest.importorskip("distributed.security")
    config = make_certificates(tmp_path / "trial")
    assert stat.S_IMODE((tmp_path / "trial").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "trial" / "key.pem").stat().st_mode) == 0o600
    found = dask_config.collect([str(config.parent)], env={})
    with dask_config.set(dask_config.merge(dask_config.config, found)):
        found = security.Security()
        assert found.require_encryption
        assert dask_config.get("distributed.worker.profile.enabled") is False
        # ssl reads certificate, key and authority, which must belong together.
        assert all(
            found.get_connection_args(role)["ssl_context"]
            for role in ("scheduler", "worker", "client")
        )
    with pytest.raises(LabError, match="it is there already"):
        make_certificates(tmp_path / "trial")


FITTING = Way("a", "b", 9000, 2e9, 1e-4, 0.01, 1e-4)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"mtu_bytes": 1500},
            "a to b: packets of 1550 bytes do not arrive whole, the largest that do have 1500 (MTU)",
        ),
        ({"rate_bps": 5e7}, "a to b: 50 Mbit/s, and 1 Gbit/s is needed (rate)"),
        ({"round_trip_s": 0.01}, "a to b: a round trip takes 10 ms, and may take 2 ms"),
        (
            {"clock_s": 3.0},
            "a to b: the clock of b is 3.000 s ahead, and may be off by 1 s",
        ),
        (
            {"clock_s": -3.0},
            "a to b: the clock of b is 3.000 s behind, and may be off by 1 s",
        ),
    ],
)
def test_what_does_not_fit_is_one_line_with_the_pair_and_the_figure(
    changed: dict[str, float], said: str
) -> None:
    assert list(misfits(FITTING, Needs())) == []
    assert list(misfits(replace(FITTING, **changed), Needs())) == [said]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("slow", "fits"), [(0, True), (PROBES - 1, True), (PROBES, False)]
)
def test_a_way_that_is_slow_for_a_moment_is_probed_again(slow: int, fits: bool) -> None:
    rates = iter([5e7] * slow + [2e9])
    ways, missed = checked_ways(
        lambda: [replace(FITTING, rate_bps=next(rates))], lambda _: [Needs()]
    )
    assert (ways[0].rate_bps >= 1e9, not missed) == (fits, fits)


@pytest.mark.parametrize("lasting", [{"mtu_bytes": 1500}, {"clock_s": 3.0}])
def test_what_will_not_pass_is_probed_once(lasting: dict[str, float]) -> None:
    slow = replace(FITTING, rate_bps=5e7, **lasting)  # type: ignore[arg-type]
    probes = iter([[slow]])
    _, missed = checked_ways(lambda: next(probes), lambda _: [Needs()])
    assert len(missed) == 2


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 64])
def test_pairs_go_in_rounds_in_which_nobody_is_twice(count: int) -> None:
    found = list(rounds(count))
    for pairs in found:
        assert len({host for pair in pairs for host in pair}) == 2 * len(pairs)
    assert len(found) <= count
    every = sorted(tuple(sorted(pair)) for pairs in found for pair in pairs)
    assert every == [(a, b) for a in range(count) for b in range(a + 1, count)]


def test_a_way_is_measured_by_who_has_the_token() -> None:
    token = b"t" * 16
    ports = start_answering("127.0.0.1", token)
    assert measure("127.0.0.1", (ports[0], ports[1]), b"w" * 16) == (
        f"no answer from 127.0.0.1, UDP port {ports[0]}; is it closed between the hosts?"
    )
    found = measure("127.0.0.1", ports, token)
    assert not isinstance(found, str)
    assert found["mtu_bytes"] == 9216
    assert found["rate_bps"] > 1e8
    assert 0 < found["round_trip_s"] < 0.05
    assert abs(found["clock_s"]) <= found["clock_error_s"] + 1e-3
    assert found["clock_error_s"] < 0.05


def test_who_sends_on_after_the_answer_still_reads_it() -> None:
    """A host that is held up sends once more before it looks for the answer."""
    token = b"t" * 16
    _, port = start_answering("127.0.0.1", token)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as stream:
        stream.sendall(token)
        # The answer comes after half a second.
        until_s = time.monotonic() + 1.5
        while time.monotonic() < until_s:
            stream.sendall(bytes(1000))
            time.sleep(0.01)
        answer = stream.recv(16, socket.MSG_WAITALL)
    count, seconds = struct.unpack("=Qd", answer)
    assert count > 0
    assert 0.4 <= seconds < 1.5


def test_a_stream_sends_no_faster_than_is_enough() -> None:
    token = b"t" * 16
    found = measure("127.0.0.1", start_answering("127.0.0.1", token), token, 5e7)
    assert not isinstance(found, str)
    assert 1e7 < found["rate_bps"] < 1e8
