"""The pytest plug-in where no lab is built: reasons of skips, wrong scenarios, what loading it costs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ringlight.experiments.analysis.rows import Row
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.scripting.runs import Figures
from ringlight.experiments.scripting.scripted_lab import Lab
from ringlight.extensions.bench import fixture_lab as testing
from ringlight.extensions.bench.fixture_lab import (
    Bench,
    Labs,
    ScenarioError,
    request_of,
)
from ringlight.extensions.bench.measuring import Measured
from ringlight.testbed import readiness, services

pytest_plugins = ("pytester",)

ROOT = Path(__file__).resolve().parents[3]
MINI = ROOT / "tests/data/mini.yaml"
USES_LAB = """
import pytest

@pytest.mark.ringlight({scenario!r}{more})
def test_light(ringlight_lab):
    assert ringlight_lab.slow_links() == []

@pytest.mark.ringlight_root
def test_root():
    pass

def test_other():
    pass
"""


def outcome(
    pytester: pytest.Pytester,
    more: str = "",
    *arguments: str,
    scenario: str = str(MINI),
) -> str:
    """What pytest prints of a project with a test that uses a lab, one that needs root, one that does not."""
    pytester.makepyfile(USES_LAB.format(scenario=scenario, more=more))
    options = (
        "--strict-markers",
        "-rsfE",
        "-p",
        "no:schemathesis",
        "-p",
        "no:cacheprovider",
    )
    return str(pytester.runpytest_inprocess(*options, *arguments).stdout)


@pytest.fixture
def any_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root on a machine that has all programs, on which everything runs and Docker lacks the image."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(services, "_CAPABILITIES", {})  # whoever runs this
    monkeypatch.setattr(shutil, "which", lambda program, path: f"/usr/bin/{program}")
    for name in ("open_vswitch_running", "docker_running"):
        monkeypatch.setattr(services, name, lambda: True)
    monkeypatch.setattr(readiness, "image_present", lambda: False)


@pytest.mark.usefixtures("any_user")
def test_without_root_a_lab_is_skipped_and_the_reason_said(
    pytester: pytest.Pytester,
) -> None:
    said = outcome(pytester)
    assert "1 passed, 2 skipped" in said
    assert "ringlight: root is needed to build networks" in said
    assert "ringlight: needs root to build networks" in said


@pytest.mark.usefixtures("any_user")
def test_what_is_required_fails_on_a_machine_that_cannot(
    pytester: pytest.Pytester,
) -> None:
    said = outcome(pytester, "", "--ringlight-required")
    assert "ringlight: root is needed to build networks" in said
    assert "1 passed, 2 errors" in said


@pytest.mark.usefixtures("root")
def test_each_lack_of_the_machine_is_said_with_its_remedy(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "make it with: ringlight setup" in outcome(pytester)
    monkeypatch.setattr(services, "_CAPABILITIES", {63: "NONE_HAS"})
    assert (
        "ringlight: root lacks the capabilities NONE_HAS here; a container"
        in outcome(pytester)
    )
    monkeypatch.setattr(services, "_CAPABILITIES", {})
    monkeypatch.setattr(services, "docker_running", lambda: False)
    assert (
        "ringlight: Docker is not running; start it with: ringlight setup"
        in outcome(pytester)
    )
    monkeypatch.setattr(services, "open_vswitch_running", lambda: False)
    assert "ringlight: Open vSwitch is not running; start it" in outcome(pytester)
    monkeypatch.setattr(shutil, "which", lambda program, path: None)
    assert "ringlight: this machine lacks openvswitch-switch, mininet, " in outcome(
        pytester
    )


@pytest.mark.usefixtures("any_user")
@pytest.mark.parametrize(
    ("more", "line"),
    [
        (", arm='none'", "there is no arm none; there are fragmented, regrouped, live"),
        (", slowed={'g9': 0.5}", "slowed: none of the links of the fabric ends at g9"),
        (", slowed={'g2': 2}", "slowed: g2: 2 is no share between 0 and 1"),
        (
            ", arms='live'",
            "ringlight: the marker has no arms; it has arm, lab, runtime, slowed",
        ),
        (", lab='module'", "ringlight: lab: 'module' is not one of test, session"),
    ],
)
def test_a_wrong_marker_is_one_line_on_any_machine(
    pytester: pytest.Pytester, more: str, line: str
) -> None:
    said = outcome(pytester, more, "-k", "test_light")
    assert "1 error" in said
    assert line in said
    assert "Traceback" not in said
    assert "extensions/bench" not in said


@pytest.mark.usefixtures("any_user")
def test_a_wrong_scenario_is_one_line_on_any_machine(pytester: pytest.Pytester) -> None:
    pytester.makefile(".yaml", bad=MINI.read_text().replace("size: 8", "sise: 8"))
    said = outcome(pytester, "", "-k", "test_light", scenario="bad.yaml")
    assert "1 error" in said
    (line,) = (line for line in said.splitlines() if line.startswith("ringlight: "))
    assert "bad.yaml: fabric.optical_switches.ocs0.sise" in line
    assert "experiments/language" not in said
    missing = outcome(pytester, "", "-k", "test_light", scenario="none.yaml")
    assert "none.yaml" in missing
    assert "experiments/language" not in missing


@pytest.mark.usefixtures("any_user")
def test_tests_that_need_a_lab_are_found_by_their_marker(
    pytester: pytest.Pytester,
) -> None:
    said = outcome(pytester, "", "-m", "not ringlight_root")
    assert "1 passed, 2 deselected" in said


@pytest.mark.usefixtures("any_user")
def test_a_scenario_may_be_a_parameter_a_fixture_or_the_projects(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.parametrize("ringlight_scenario", [{str(MINI)!r}])
        def test_parameter(ringlight_lab):
            pass

        def test_of_project(ringlight_lab):
            pass
        """
    )
    quiet = ("-p", "no:schemathesis", "-p", "no:cacheprovider", "-rE")
    said = str(pytester.runpytest_inprocess(*quiet).stdout)
    assert "1 skipped, 1 error" in said
    assert "ringlight: name a scenario" in said
    pytester.makeini(f"[pytest]\nringlight_scenario = {MINI}\n")
    assert "2 skipped" in str(pytester.runpytest_inprocess(*quiet).stdout)


def test_a_fabric_in_python_is_enough(tmp_path: Path) -> None:
    links = [{"ends": [f"g{i}", f"tor0:{i}"], "rate": "10 Gbit/s"} for i in (1, 2)]
    servers = {"s0": {"gpus": {"g1": "gpu", "g2": "gpu"}}}
    fabric = {
        "servers": servers,
        "packet_switches": {"tor0": {"ports": 2}},
        "links": links,
    }
    here = tmp_path / "test_it.py"
    bare, whole = (
        request_of(fabric, here, tmp_path),
        request_of({"fabric": fabric}, here, tmp_path),
    )
    assert bare.key == whole.key
    assert bare.plans[0].setting.fabric.gpus.keys() == {"g1", "g2"}
    slow = request_of(fabric, here, tmp_path, slowed={"g2": 0.5})
    setting = slow.plans[0].setting
    assert [link["rate"] for link in setting.section["links"]] == [
        "10 Gbit/s",
        "5000000000 bit/s",
    ]
    # What everybody but the lab's builder goes by stays as stated.
    assert {link.rate_bps for link in setting.fabric.links} == {10e9}
    with pytest.raises(ScenarioError, match=r"test_it\.py: fabric\.links"):
        request_of({**fabric, "links": [{"ends": ["g1"]}]}, here, tmp_path)


@dataclass
class Opened:
    """Stands for a lab."""

    broken: bool = False
    closed: list[int] = field(default_factory=list)

    def close(self) -> None:
        self.closed.append(1)


def test_a_lab_is_kept_for_the_same_and_never_when_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testing, "open_lab", lambda *_: Opened())
    labs = Labs(lambda: tmp_path)
    one = request_of(str(MINI), tmp_path / "t.py", tmp_path)
    other = replace(one, key=("other",))
    first = labs.take(one)
    labs.give_back(keep=True)
    assert labs.take(one) is first
    second = labs.take(other)
    assert first.closed == [1]  # type: ignore[attr-defined]
    second.broken = True
    labs.give_back(keep=True)
    assert second.closed == [1]  # type: ignore[attr-defined]
    third = labs.take(other)
    labs.give_back(keep=False)
    labs.close()
    assert third.closed == [1]  # type: ignore[attr-defined]


def test_a_test_that_closes_its_lab_leaves_the_next_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request_of(str(MINI), tmp_path / "t.py", tmp_path)
    closed: list[str] = []

    def opened(
        _experiment: object, plans: Sequence[RunPlan], _runtime: str, logs: Path
    ) -> Lab:
        lab, api = (
            SimpleNamespace(close=partial(closed.append, name))
            for name in ("lab", "api")
        )
        fabric = plans[0].setting.fabric
        return Lab("x1", fabric, cast("Any", api), "", logs, tuple(plans), _lab=lab)

    monkeypatch.setattr(testing, "open_lab", opened)
    labs = Labs(lambda: tmp_path)
    first = labs.take(asked)
    first.close()
    with pytest.raises(BackendError, match="lab x1 was closed"):
        first.slow_links()
    labs.give_back(keep=True)
    second = labs.take(asked)
    assert second is not first
    labs.close()
    assert closed.count("lab") == 2
    # A connection to the controller would be left open otherwise.
    assert "api" in closed


def test_figures_are_asked_for_by_name() -> None:
    bench = Bench(
        "all-reduce",
        (Measured(4 << 20, 0.5, 8e9, 12e9), Measured(8 << 20, 1, 8e9, 12e9)),
        12,
    )
    assert bench.at("8 MiB").busbw_bps == 12e9
    with pytest.raises(
        LookupError, match=r"1 MiB was not measured; there are 4\.194 MB"
    ):
        bench.at("1 MiB")
    figures = Figures((*bench.rows, Row("a", "job red", "jct", 3.0, "s", "measured")))
    assert figures.value("busbw", subject="all-reduce 4.194 MB") == 12e9
    with pytest.raises(
        LookupError, match=r"2 rows of busbw are as asked; there are: -, all-reduce"
    ):
        figures.value("busbw")
    with pytest.raises(
        LookupError, match=r"there is no metric none; there are algbw, busbw, jct, time"
    ):
        figures.value("none")
    assert "exact" in str(bench)
    assert "12 Gbit/s" in str(bench)


def test_the_plugin_is_light() -> None:
    """It is loaded by every pytest of a machine, whatever that tests."""
    code = "import pytest, sys; old = set(sys.modules); import ringlight.extensions.bench.plugin; "
    code += "print(*(set(sys.modules) - old))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    ours = {
        "ringlight",
        "ringlight.extensions",
        "ringlight.extensions.bench",
        "ringlight.extensions.bench.plugin",
    }
    ours |= {"ringlight.fabric", "ringlight.fabric.extension"}
    assert set(done.stdout.split()) - sys.stdlib_module_names <= ours
