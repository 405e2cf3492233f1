"""The launcher in the repository root: what it installs, and what it can do without."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The launcher on a machine without SimGrid and netconfd, whose programs are those in ``tmp_path``."""
    # Compiled, it would be left beside the launcher.
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = SourceFileLoader("launcher", str(ROOT / "ringlight"))
    spec = importlib.util.spec_from_loader("launcher", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    # As they are installed, but here.
    wanted = [
        (package, f"{tmp_path}/{Path(seen).name}", what)
        for package, seen, what in module.WANTED
    ]
    monkeypatch.setattr(module, "WANTED", wanted)
    monkeypatch.setattr(module, "MORE_WANTED", "none")
    monkeypatch.setattr(module, "ABSENT", tmp_path / "build")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    return module


def make_apt(directory: Path, body: str) -> None:
    program = directory / "apt-get"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_what_only_the_suite_wants_is_installed_once(
    launcher: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = "; ".join(
        f"case $* in *{word}*) : > {tmp_path}/{file};; esac"
        for word, file in (
            ("simgrid", "simgrid.x.so"),
            ("netconfd", "netconfd"),
            ("zsh", "zsh"),
            ("chromium", "chromium"),
        )
    )
    make_apt(tmp_path, f'echo "$@" >> {tmp_path}/calls; {files}')
    launcher.install_wanted()
    launcher.install_wanted()
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    assert [call[-1] for call in calls if call[0] == "install"] == [
        "python3-simgrid",
        "netconfd",
        "zsh",
        "chromium",
    ]
    assert "skipped" not in capsys.readouterr().err


def test_the_environment_is_made_by_an_optimised_python(
    launcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, bare = tmp_path / "whole", tmp_path / "bare"
    for python, code in ((whole, 0), (bare, 1)):
        python.write_text(f"#!/bin/sh\nexit {code}\n")
        python.chmod(0o755)
    monkeypatch.setattr("sys.prefix", sys.base_prefix)
    monkeypatch.setattr("sysconfig.get_config_var", lambda _: "'--prefix=/opt'")
    assert launcher.should_go_on_with(str(whole))
    # It has no module venv.
    assert not launcher.should_go_on_with(str(bare))
    assert not launcher.should_go_on_with(sys.executable)
    assert not launcher.should_go_on_with(str(tmp_path / "none"))
    monkeypatch.setattr(
        "sysconfig.get_config_var", lambda _: "'--enable-optimizations' '--with-lto'"
    )
    assert not launcher.should_go_on_with(str(whole))
    monkeypatch.setattr("sysconfig.get_config_var", lambda _: None)
    # In an environment that was made before, all goes on as it was.
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert not launcher.should_go_on_with(str(whole))


@pytest.mark.parametrize("apt", ["exit 100", '[ "$1" = update ]', None])
def test_without_it_the_suite_goes_on(
    launcher: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    apt: str | None,
) -> None:
    if apt is not None:
        make_apt(tmp_path, apt)
    launcher.install_wanted()
    told = capsys.readouterr().err
    assert (
        "python3-simgrid cannot be installed here: the comparison with SimGrid will be skipped"
        in told
    )
    assert (
        "netconfd cannot be installed here: the tests of NETCONF against netconfd will be skipped"
        in told
    )


def test_one_that_is_absent_keeps_no_other_away_and_is_asked_for_once_a_day(
    launcher: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    has_others = (
        f"case $* in *simgrid*) exit 100;; *netconfd*) : > {tmp_path}/netconfd;; "
        f"*zsh*) : > {tmp_path}/zsh;; *chromium*) : > {tmp_path}/chromium;; esac"
    )
    make_apt(tmp_path, f'echo "$1" >> {tmp_path}/calls; {has_others}')
    for _ in range(2):
        launcher.install_wanted()
        assert "the comparison with SimGrid will be skipped" in capsys.readouterr().err
    assert (tmp_path / "calls").read_text().split() == ["update", "install"] * 4
    assert (tmp_path / "netconfd").exists()
    yesterday = time.time() - 90_000
    os.utime(tmp_path / "build/simgrid-absent", (yesterday, yesterday))
    launcher.install_wanted()
    assert (tmp_path / "calls").read_text().split() == ["update", "install"] * 5


def test_a_program_that_hangs_is_ended_with_what_it_started(
    launcher: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_apt(tmp_path, f"/bin/sleep 60 & echo $! > {tmp_path}/pid; wait")
    command = [str(tmp_path / "apt-get")]
    assert not launcher.run(command, "Waiting", must=False, deadline_s=0.5)
    with pytest.raises(SystemExit):
        launcher.run(command, "Waiting", deadline_s=0.5)
    assert "Waiting failed (not done after 0.5 s)" in capsys.readouterr().err
    child = Path("/proc", (tmp_path / "pid").read_text().strip(), "cmdline")
    # The group was ended with its leader; the kernel takes a moment to bury the rest of it.
    deadline = time.monotonic() + 5
    while child.exists() and child.read_bytes():
        assert time.monotonic() < deadline, "what it started lives on"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("arguments", "needs"),
    [
        (["run", "a.yaml"], True),
        (["weave", "a.yaml"], True),
        (["weave", "a.yaml", "--simulate"], False),
        (["ocs", "weave"], True),
        (["weaver", "a.yaml"], False),
        (["run", "--help"], False),
        (["simulate", "a.yaml"], False),
        (["results", "runs/a"], False),
        (["workload", "make", "--list"], False),
        (["ocs", "serve"], False),
        (["--version"], False),
        ([], False),
    ],
)
def test_only_what_builds_labs_needs_packages(
    launcher: ModuleType,
    arguments: list[str],
    needs: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launcher, "ROOT", tmp_path)
    extension = tmp_path / "extensions/weaving"
    extension.mkdir(parents=True)
    (extension / launcher.MORE_BUILDERS).write_text("weave\nocs weave\n")
    assert launcher.needs_packages(arguments) is needs


def test_a_package_that_is_needed_stops_it(
    launcher: ModuleType, tmp_path: Path
) -> None:
    make_apt(tmp_path, "exit 100")
    with pytest.raises(SystemExit):
        launcher.install_packages(["clang"])


def test_of_two_at_once_one_makes_the_environment_and_the_other_waits(
    launcher: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place_environment(launcher, tmp_path, monkeypatch)
    monkeypatch.setattr(launcher, "missing_packages", list)
    made: list[int] = []
    goes_on = threading.Event()

    def make() -> None:
        made.append(1)
        assert goes_on.wait(20)
        (tmp_path / ".venv").mkdir()
        launcher.STAMP.write_text(launcher.fingerprint())

    monkeypatch.setattr(launcher, "make_environment", make)
    both = [threading.Thread(target=launcher.provide_environment) for _ in range(2)]
    for one in both:
        one.start()
    told, deadline = "", time.monotonic() + 20
    while (
        "waiting for it" not in told and len(made) < 2 and time.monotonic() < deadline
    ):
        told += capsys.readouterr().err
        time.sleep(0.01)
    goes_on.set()
    for one in both:
        one.join(20)
    assert made == [1]
    assert "another ringlight is making" in told


def test_changed_packages_leave_what_was_installed_besides(
    launcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = commands_recorded(launcher, tmp_path, monkeypatch)
    made_anew = "Making the Python environment"
    launcher.make_environment()
    assert next(iter(done)) == made_anew

    done.clear()
    launcher.LOCK.write_text(launcher.LOCK.read_text().replace("one==1", "one==2"))
    assert not launcher.environment_is_current()
    launcher.make_environment()
    assert list(done) == [
        "Installing uv",
        "Installing the Python packages",
        "Installing ringlight itself",
    ]

    # One that was interrupted may be half made.
    launcher.STAMP.write_text(f"{launcher.IDENTITY}\n")
    done.clear()
    launcher.make_environment()
    assert next(iter(done)) == made_anew
    assert launcher.environment_is_current()


def place_environment(
    launcher: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Have the launcher be that of a clone in ``root``, and return where its environment is."""
    monkeypatch.setattr(launcher, "ROOT", root)
    monkeypatch.delenv("RINGLIGHT_VENV", raising=False)
    place: Path = launcher.environment_folder()
    monkeypatch.setattr(launcher, "VENV", place)
    monkeypatch.setattr(launcher, "STAMP", place / launcher.STAMP_NAME)
    (root / "pyproject.toml").write_text("")
    return place


def test_each_machine_and_interpreter_has_an_environment_that_the_next_one_leaves(
    launcher: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = []
    for identity in ("cpython-311 a", "cpython-313 a", "cpython-311 b"):
        monkeypatch.setattr(launcher, "IDENTITY", identity)
        commands_recorded(launcher, tmp_path, monkeypatch)
        launcher.make_environment()
        (launcher.VENV / "theirs").touch()
        places.append(launcher.VENV)
    assert places[0].name == ".venv"
    assert len(set(places)) == 3
    for place in places:
        assert (place / "theirs").exists()
    assert f"{places[0]} is for cpython-311 a and stays" in capsys.readouterr().err
    # Each finds its own again.
    monkeypatch.setattr(launcher, "IDENTITY", "cpython-313 a")
    place_environment(launcher, tmp_path, monkeypatch)
    assert places[1] == launcher.VENV
    assert launcher.environment_is_current()


def test_what_somebody_else_made_is_never_emptied(
    launcher: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = make(tmp_path / ".venv/bin") / "python"
    own.touch()
    place = place_environment(launcher, tmp_path, monkeypatch)
    assert place.name.startswith(".venv-cpython-3")

    monkeypatch.setenv("RINGLIGHT_VENV", str(tmp_path / ".venv"))
    chosen = launcher.environment_folder()
    assert chosen == tmp_path / ".venv"
    monkeypatch.setattr(launcher, "VENV", chosen)
    monkeypatch.setattr(launcher, "STAMP", chosen / launcher.STAMP_NAME)
    with pytest.raises(SystemExit):
        launcher.make_environment()
    assert "name another folder in RINGLIGHT_VENV" in capsys.readouterr().err
    assert own.exists()


def test_an_environment_of_before_is_used_on(
    launcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "ROOT", tmp_path)
    stamp = make(tmp_path / ".venv") / launcher.STAMP_NAME
    stamp.write_text(f"{launcher.former_identity()}\npackages")
    assert place_environment(launcher, tmp_path, monkeypatch) == tmp_path / ".venv"
    done = commands_recorded(launcher, tmp_path, monkeypatch)
    launcher.make_environment()
    assert next(iter(done)) == "Installing uv"
    assert launcher.owner(launcher.VENV) == launcher.IDENTITY


def commands_recorded(
    launcher: ModuleType,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: str = "",
    failing: tuple[str, ...] = (),
) -> dict[str, list[str]]:
    """The programs of set-up commands, by what they are for, as they come; none is run.

    ``settings``: pip's. ``failing``: programs that fail.
    """
    told = subprocess.CompletedProcess([], 0, f"{settings}\n".encode(), b"")
    monkeypatch.setattr(launcher.subprocess, "run", lambda command, **_: told)
    (folder / "requirements.lock").write_text(
        "one==1\nuv==1 \\\n    --hash=2\ntwo==1\n"
    )
    monkeypatch.setattr(launcher, "LOCK", folder / "requirements.lock")
    place_environment(launcher, folder, monkeypatch)
    done: dict[str, list[str]] = {}

    def run(
        command: list[str], what: str, *, must: bool = True, deadline_s: float = 0
    ) -> bool:
        program = Path(command[0]).name
        done.setdefault(what, []).append(program)
        if what == "Installing uv":
            assert Path(command[-1]).read_text() == "uv==1 \\\n    --hash=2\n"
        assert not (must and program in failing)
        return program not in failing

    monkeypatch.setattr(launcher, "run", run)
    return done


@pytest.mark.parametrize(
    ("settings", "failing", "programs"),
    [
        ("", (), ["uv"]),
        ("global.extra-index-url='x'", (), ["uv"]),
        ("", ("uv",), ["uv", "python"]),
        ("global.index-url='x'", (), ["python"]),
        (":env:.no-index='1'", (), ["python"]),
    ],
)
def test_pip_does_what_uv_cannot_do(
    launcher: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: str,
    failing: tuple[str, ...],
    programs: list[str],
) -> None:
    done = commands_recorded(launcher, tmp_path, monkeypatch, settings, failing)
    launcher.make_environment()
    assert done["Installing the Python packages"] == programs


def test_the_environment_itself_starts_it_where_there_is_one(tmp_path: Path) -> None:
    tree, elsewhere = tmp_path / "tree", tmp_path / "elsewhere"
    shutil.copy(ROOT / "ringlight", make(tree) / "ringlight")
    for python, who in (
        (tree / ".venv/bin/python", "own"),
        (elsewhere / "python3", "other"),
    ):
        make(python.parent)
        python.write_text(f'#!/bin/sh\necho {who} "$@"\n')
        python.chmod(0o755)

    def started_by(**environment: str) -> str:
        environment |= {"PATH": f"{elsewhere}:/usr/bin:/bin"}
        command = [tree / "ringlight", "up", "a b.yaml"]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        )
        who, _, words = done.stdout.partition(" ")
        assert words == f"{tree}/ringlight up a b.yaml\n"
        return who

    assert started_by() == "own"
    assert started_by(RINGLIGHT_VENV=f"{tmp_path}/none") == "other"
    (tree / ".venv/bin/python").unlink()
    (tree / ".venv/bin/python").symlink_to(tmp_path / "removed")
    assert started_by() == "other"
    assert started_by(RINGLIGHT_VENV=f"{tree}/.venv") == "other"


def make(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory
