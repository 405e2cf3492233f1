"""The project in ``tests/data/project``: what a page shows of it, and what an installed package prints."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from contextlib import nullcontext
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

from ringlight.containers import image_build
from ringlight.experiments.cli import app, machine
from ringlight.experiments.language.expand import load
from ringlight.experiments.record import environment
from ringlight.testbed import programs, services, setup

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "tests/data/project"
GITLAB = yaml.safe_load((PROJECT / ".gitlab-ci.yml").read_text())["fabric"]
GITHUB = yaml.safe_load((PROJECT / ".github/workflows/fabric.yml").read_text())["jobs"][
    "fabric"
]


@pytest.fixture
def in_ci(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``containers/ci/project``."""
    # Compiled, it would be left beside it.
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = SourceFileLoader("project", str(ROOT / "containers/ci/project"))
    spec = importlib.util.spec_from_loader("project", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "project", module)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name", ["test_collectives.py", ".gitlab-ci.yml", ".github/workflows/fabric.yml"]
)
def test_the_page_shows_the_files_of_the_project(name: str) -> None:
    assert f"\n{(PROJECT / name).read_text()}```\n" in (ROOT / "docs/ci.md").read_text()


def test_what_runs_in_the_container_is_what_the_page_shows(in_ci: ModuleType) -> None:
    variables, commands = in_ci.script_of((PROJECT / ".gitlab-ci.yml").read_text())
    assert variables == GITLAB["variables"]
    assert commands == GITLAB["script"]
    of_github = [
        step["run"].replace("sudo ", "") for step in GITHUB["steps"] if "run" in step
    ]
    assert of_github == [
        line.replace("$RINGLIGHT", "${{ vars.RINGLIGHT }}") for line in commands
    ]


def test_it_installs_what_a_lab_needs() -> None:
    needed = {package for _, package in programs.OF_LABS + programs.OF_DOCKER} | {
        "python3-venv"
    }
    assert needed <= set(GITLAB["variables"]["PACKAGES"].split())
    # A runner of GitHub has Docker.
    assert needed - {"docker.io"} <= set(GITHUB["env"]["PACKAGES"].split())


def test_its_fabric_is_sound() -> None:
    (plan,) = load(PROJECT / "fabric.yaml").plans
    assert len(plan.setting.fabric.gpus) == 4


def test_it_does_nothing_to_a_machine_that_is_no_ci(
    in_ci: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        in_ci.main()
    assert (
        "run it as: containers/ci/run containers/ci/project" in capsys.readouterr().err
    )


def test_a_line_that_fails_or_names_a_link_is_seen(
    in_ci: ModuleType, tmp_path: Path
) -> None:
    slow = "link NICs of g2, g3, g2 to g3: 49% of its stated rate"
    step = in_ci.run(
        f"echo one; echo '{slow.replace('g2 to g3', 'g3 to g2')}'; echo 'E {slow}'; exit 3",
        {},
        tmp_path,
    )
    assert step.code == 3
    assert step.first(in_ci.PLANTED)[1] == slow
    assert step.first("two") is None
    with pytest.raises(SystemExit):
        in_ci.must(step)


@pytest.mark.parametrize(
    ("held", "lacking"),
    [
        ("000001ffffffffff", []),
        ("00000000a80425fb", ["NET_ADMIN", "SYS_ADMIN"]),
        ("1000", ["SYS_ADMIN"]),
    ],
)
def test_capabilities_without_which_root_builds_no_networks(
    held: str, lacking: list[str]
) -> None:
    assert (
        services.lacking_capabilities(f"Name:\tx\nCapPrm:\t0\nCapEff:\t{held}\n")
        == lacking
    )


def test_what_is_not_installed_is_said_at_once_and_nothing_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(services, "check_privileges", lambda: None)
    monkeypatch.setattr(services, "docker_running", lambda: False)
    monkeypatch.setattr(
        services, "ensure_services", lambda docker: pytest.fail("started")
    )
    monkeypatch.setattr(
        programs,
        "present",
        lambda what: what not in ("ovs-vswitchd", "ip", "tc", "dockerd"),
    )
    line = "lacks openvswitch-switch, iproute2{}; run: apt-get install openvswitch-switch iproute2{}"
    with pytest.raises(services.ServiceError) as found:
        setup.ensure_ready(lambda text: None)
    assert str(found.value) == "this machine " + line.format(
        ", docker.io", " docker.io"
    )
    with pytest.raises(services.ServiceError) as found:
        setup.ensure_ready(lambda text: None, runtime="namespace")
    assert str(found.value) == "this machine " + line.format("", "")


def test_an_installed_package_has_no_suite_and_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["ringlight", "test"])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 2
    assert "the installed package has no suite" in capsys.readouterr().err


def test_an_installed_package_is_not_of_the_commit_of_the_project_around_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / ".venv/ringlight"
    package.mkdir(parents=True)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run([*git, *words], check=True, timeout=20)
    monkeypatch.setattr(environment, "ROOT", package)
    assert environment._commit() == ""


def test_storage_that_copies_every_layer_is_said_before_the_image_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    for driver in ("overlay2", "vfs"):
        client = SimpleNamespace(info=lambda driver=driver: {"Driver": driver})
        monkeypatch.setattr(
            image_build, "docker_client", lambda timeout_s, c=client: nullcontext(c)
        )
        monkeypatch.setattr(image_build, "has_image", lambda client, tag: True)
        monkeypatch.setattr(image_build, "_make_worker", lambda client: None)
        image_build.build_image(said.append)
    assert [line.partition(",")[0] for line in said] == [
        "Making the worker image", "Docker's storage is vfs here", "Making the worker image",
    ]  # fmt: skip
