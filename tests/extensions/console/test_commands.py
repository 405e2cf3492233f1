"""Commands for hands in a lab, as a user meets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlight.containers.image import ROOT
from ringlight.experiments.backends.emulation import lab_of_setting
from ringlight.experiments.cli import app
from ringlight.testbed.lab import LabError
from tests.unit.test_choosing import SWEPT
from tests.unit.test_cli import loaded_by, one_line, ringlight

BUNDLED = ROOT / "scenarios" / "disaggregation.yaml"


def test_hands_in_a_lab_load_only_what_they_need(tmp_path: Path) -> None:
    fabric = tmp_path / "fabric.json"
    fabric.write_text(
        '{"rings": {"r": {"nodes": 3, "wavelengths": 1, "gpu": "a", "rate": "1 Gbit/s"}}}'
    )
    heavy = {
        "numpy",
        "highspy",
        "networkx",
        "docker",
        "pyroute2",
        "mininet",
        "fastapi",
        "matplotlib",
    }
    attached = "from ringlight.extensions.console import capture, measures\n"
    attached += "from ringlight.testbed.emulation import attached\n"
    attached += f"from pathlib import Path; attached.load_fabric(Path({str(fabric)!r}))"
    assert loaded_by(attached) & heavy == set()
    prompt = "from ringlight.extensions.console import prompt, view"
    assert loaded_by(prompt) & heavy <= {"mininet"}


def test_a_capture_in_no_lab_leaves_an_old_file_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "old.pcap"
    file.write_text("old")
    done = ringlight("capture", "tor0:1", "--write", str(file), "--lab", "nowhere")
    assert done.returncode != 0
    assert "nowhere" in one_line(done)
    assert file.read_text() == "old"


def test_the_prompt_of_a_scenario_takes_a_point(tmp_path: Path) -> None:
    file = tmp_path / "swept.yaml"
    file.write_text(SWEPT)
    # Where there is no such place no lab comes up, should the choice get lost.
    where = ("--rest", "nowhere")
    said = one_line(ringlight("shell", str(file), "--point", "nix", *where))
    assert f"{file}: there is no point nix; there are base-1" in said
    said = one_line(ringlight("shell", str(file), "--set", "nix=1", *where))
    assert f"{file}: --set nix: unknown key" in said


def test_the_lab_of_a_prompt_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def made(_: object, runtime: str, addresses: object, **how: object) -> None:
        asked.extend((runtime, how["follow"]))
        raise LabError("enough")

    monkeypatch.setattr(lab_of_setting, "processes_of", made)
    app.add_commands()
    words = ["shell", str(BUNDLED), "--arm", "a-fragmented", "--runtime", "namespace"]
    with pytest.raises(LabError, match="enough"):
        app.app(words, standalone_mode=False)
    assert asked == ["namespace", True]


def test_the_prompt_builds_no_lab_that_nobody_could_drive(tmp_path: Path) -> None:
    text = BUNDLED.read_text()
    assert "optical_switches:" in text
    file = tmp_path / "own.yaml"
    file.write_text(text)
    own = "fabric.optical_switches.ocs0={size: 24, driver: own, address: '10.0.0.5:1'}"
    done = ringlight(
        "shell", str(file), "--arm", "a-fragmented", "--set", own, root=False
    )
    assert done.returncode == 2
    assert "optical_switches.ocs0: driver: own" in one_line(done)
