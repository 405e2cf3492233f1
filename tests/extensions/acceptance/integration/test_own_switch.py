"""The kit against the optical switch in ``docs/switch``, installed beside Ringlight, and broken ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ringlight.containers.image import ROOT
from tests.installed import finding, install, ringlight

pytestmark = [pytest.mark.root, pytest.mark.drivers]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(ROOT / "docs/switch", tmp_path_factory.mktemp("switch"))


def test_it_passes(installed: Path) -> None:
    done = ringlight(
        finding(installed), "ocs", "conformance", "--driver", "acme", "--json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (switch,) = json.loads(done.stdout)["switches"]
    lacking = {
        item["item"]: item["text"]
        for item in switch["items"]
        if item["state"] != "green"
    }
    # There is no login, so item 1 does not need one either.
    assert lacking == {34: "sessions that lock each other out", 45: "a login"}


#: By what is broken: the file, the text that is replaced, by which, and what is then said.
_MISTAKES = {
    "session": (
        "emulated.py",
        ("self._device.submit(now_ns, command)", "self._device.submitted[now_ns]"),
        (
            "FAILED the emulated switch has ended: AttributeError: ",
            "emulated.py",
            "in _work) (item 7, 9)",
        ),
    ),
    "protocol": (
        "emulated.py",
        ("PROTOCOL =", "PROTOCOL = ("),
        (
            "--driver acme: extension acme: emulated:PROTOCOL cannot be loaded: '(' was never closed",
        ),
    ),
    "lacking": (
        "driver.py",
        ("def _add(", "def _ad("),
        ("--driver acme: acme: driver:AcmeDriver lacks _add",),
    ),
    "attribute": (
        "driver.py",
        ("parse_reading(self.name,", "parse_reading(self._name,"),
        (
            "'AcmeDriver' object has no attribute '_name' (",
            "driver.py, line ",
            "in _read)",
        ),
    ),
    "proxy": (
        "rig.py",
        ("CONNECT|CLEAR", "ADD|SUB"),
        (
            "writes for one cross-connect: the rig has seen none",
            "WRITE of the rig's proxy",
        ),
    ),
}


@pytest.mark.parametrize("mistake", _MISTAKES)
def test_a_mistake_is_said_by_its_name(
    mistake: str, installed: Path, tmp_path: Path
) -> None:
    file, (old, new), said = _MISTAKES[mistake]
    target = tmp_path / "installed"
    shutil.copytree(installed, target, ignore=shutil.ignore_patterns("__pycache__"))
    path = target / "ringlight_acme" / file
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    one = ("--driver", "acme", "--check", "adding_and_repeating")
    done = ringlight(finding(target), "ocs", "conformance", *one)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    told = f"{done.stdout}\n{done.stderr}"
    assert [words for words in said if words not in told] == [], told
