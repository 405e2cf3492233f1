"""Options of labs on hosts, and commands for them, as a user meets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlight.containers.image import ROOT
from tests.unit.test_cli import one_line, ringlight

BUNDLED = str(ROOT / "scenarios" / "disaggregation.yaml")


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (
            ["simulate", BUNDLED, "--dask", "local", "--processes", "1"],
            2,
            "give one of them",
        ),
        (
            ["simulate", BUNDLED, "--dask", "local", "--executor", "dask:local"],
            2,
            "give one of them",
        ),
        (
            ["run", BUNDLED, "--dask", "tcp://10.9.8.7:1"],
            1,
            "who reaches tcp://10.9.8.7:1 runs programs as root",
        ),
        (
            ["run", BUNDLED, "--dask", "tls://h:1", "--rest", "127.0.0.1:1"],
            2,
            "--rest: without effect on labs of",
        ),
        (
            ["run", BUNDLED, "--dask", "tls://h:1", "--tls-cert", "a"],
            2,
            "--tls-cert: without effect",
        ),
        (["run", BUNDLED, "--hosts", "2"], 2, "--hosts: only with --dask"),
        (
            ["run", BUNDLED, "--vxlan-port", "14789"],
            2,
            "--vxlan-port: only with --dask",
        ),
        (
            ["hosts", "up", BUNDLED, "--dask", "tcp://10.9.8.7:1"],
            1,
            "who reaches tcp://10.9.8.7:1 runs programs",
        ),
        (
            ["hosts", "shell", "abcd", "--dask", "tcp://10.9.8.7:1"],
            1,
            "who reaches tcp://10.9.8.7:1 runs programs",
        ),
    ],
)
def test_wrong_input_is_one_line(
    arguments: list[str], code: int, part: str, tmp_path: Path
) -> None:
    place = ["--runs", str(tmp_path)] if arguments[0] in ("run", "simulate") else []
    done = ringlight(*arguments, *place)
    assert done.returncode == code
    assert part in one_line(done)
    assert not list(tmp_path.iterdir())


def test_where_fabrics_would_be_cut_is_shown() -> None:
    done = ringlight("hosts", "cut", BUNDLED, "--hosts", "2")
    assert done.stdout.splitlines() == [
        "fabric, host 1: tor0 g0 g1 g2 ocs0",
        "fabric, host 2: tor1 g3 g4 g5",
        "fabric, hosts 1 and 2: 8 fibres, 732.3 Mbit/s each way as emulated",
    ]
