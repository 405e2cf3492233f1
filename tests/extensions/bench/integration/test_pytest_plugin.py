"""The pytest plug-in in a project of its own: a killed session, a link slower than stated, figures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ringlight.testbed.lab import Lab
from tests.conftest import environments
from tests.integration.labs import traces, until

pytestmark = [pytest.mark.root, pytest.mark.alone, pytest.mark.timeout(300)]

TESTS = """
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.ringlight(FABRIC, runtime="namespace")


def note(name, lab):
    Path(f"{name}.part").write_text(lab.id)
    Path(f"{name}.part").rename(name)


def test_hangs(ringlight_lab):
    note("killed", ringlight_lab)
    time.sleep(600)


@pytest.mark.ringlight(FABRIC, runtime="namespace", lab="session")
def test_figures(ringlight_lab):
    note("figures", ringlight_lab)
    table = ringlight_lab.bench(sizes="4MiB..16MiB", calls=2)
    assert table.checked
    assert 0 < table.at("16MiB").busbw_bps < 25e9
    assert {row.metric for row in table.rows} == {"time", "algbw", "busbw"}


@pytest.mark.ringlight(FABRIC, runtime="namespace", lab="session")
def test_the_same_lab(ringlight_lab):
    assert ringlight_lab.id == Path("figures").read_text()
    found = ringlight_lab.run()
    assert found.value("state", subject="job train") == "SUCCEEDED"
    assert ringlight_lab.rest.get("/v1/health")["status"] == "ok"


@pytest.mark.ringlight(FABRIC, runtime="namespace", slowed={"g2": 0.5})
def test_planted(ringlight_lab):
    note("planted", ringlight_lab)
    ringlight_lab.bench(sizes="16MiB", calls=1)
    assert ringlight_lab.slow_links() == []
"""
FABRIC = """
FABRIC = {
    "scale": {"time": 5, "payload": 400},
    "link_test": {"duration": "300 ms"},
    "fabric": {
        "servers": {"s0": {"gpus": {"g0": "gpu", "g1": "gpu", "g2": "gpu"}}},
        "packet_switches": {"tor0": {"ports": 3}},
        "links": [{"ends": [f"g{i}", f"tor0:{i + 1}"], "rate": "25 Gbit/s"} for i in range(3)],
    },
    "training": {"model": "resnet50", "compute": "1 ms", "batch": 8, "iterations": 1},
    "jobs": {"train": {"ranks": "all"}},
}
"""


@pytest.fixture
def foreign() -> Iterator[str]:
    """A namespace that is called as a lab's would be."""
    name = f"rl{os.getpid() % 1000:03d}-g0"
    subprocess.run(["ip", "netns", "add", name], check=True, timeout=10)
    yield name
    subprocess.run(["ip", "netns", "del", name], check=True, timeout=10)


def session(project: Path, *options: str) -> subprocess.Popen[str]:
    """pytest of another project; it ends with this test."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:schemathesis",
        "-p",
        "no:cacheprovider",
        "-v",
    ]
    return subprocess.Popen(
        [*command, *options], cwd=project, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_a_project_of_its_own_after_a_session_that_was_killed(
    tmp_path: Path, foreign: str
) -> None:
    (tmp_path / "test_fabric.py").write_text(FABRIC + TESTS)
    with session(tmp_path, "-k", "test_hangs") as first:
        noted = tmp_path / "killed"
        until(lambda: noted.exists() or first.poll() is not None, 120)
        assert noted.exists(), first.communicate(timeout=10)[0]
        killed = Lab(noted.read_text())
        assert traces(killed)
        # And its processes with it, which would otherwise remove the lab themselves.
        for pid in [
            first.pid,
            *(p for p, env in environments() if env.get("RINGLIGHT_LAB") == killed.id),
        ]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert traces(killed)

    with session(tmp_path, "-k", "not test_hangs") as second:
        said = second.communicate(timeout=240)[0]
    assert second.returncode == 1, said
    assert "1 failed, 2 passed" in said
    assert "FAILED test_fabric.py::test_planted" in said
    # In the assertion, and beside it.
    slow = [line for line in said.splitlines() if line.startswith("link NICs of")]
    assert slow, said
    assert all("g2" in line and "% of its stated rate" in line for line in slow)
    assert "bus bandwidth" in said
    for name in ("killed", "figures", "planted"):
        assert traces(Lab((tmp_path / name).read_text())) == []
    assert (
        foreign
        in subprocess.run(
            ["ip", "netns"], capture_output=True, text=True, check=True
        ).stdout
    )
