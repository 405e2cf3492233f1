"""A base installation names the extra that is missing; the commands find their examples; completion."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from ringlight.experiments.cli import app, extras
from ringlight.fabric.extension import (
    Extension,
    ExtensionError,
    InstalledExtension,
)
from ringlight.fabric.optical_profiles import profiles
from ringlight.testbed import packages
from ringlight.testbed.emulation.optical import alone
from ringlight.testbed.emulation.optical.session import ManagementProtocol
from ringlight.testbed.emulation.optical.switch_settings import Settings
from ringlight.testbed.lab import LabError

ROOT = Path(__file__).resolve().parents[2]


def ringlight(
    *words: str, folder: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringlight.experiments.cli.app", *words], cwd=folder, text=True,
        capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **environment},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("docker", "emulate"),
        ("os_ken.base", "emulate"),
        ("google.protobuf", "chakra"),
        ("torch", "onn"),
    ],
)
def test_a_missing_package_names_its_extra(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = [
        "numpy>=1",
        'docker<8,>=7.1; extra == "emulate"',
        'os-ken>=4; extra == "emulate"',
    ]
    needed += [
        'protobuf>=5; extra == "chakra"',
        'torch<3; extra == "onn"',
        'docker; extra == "dev"',
    ]
    monkeypatch.setattr(metadata, "requires", lambda _: needed)
    line = extras.advice(ModuleNotFoundError(name=module))
    assert line is not None
    assert f"pip install 'ringlight[{extra}]'" in line
    assert extras.advice(ModuleNotFoundError(name="nowhere")) is None


def test_labs_name_the_package_that_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    packages.check_packages()
    monkeypatch.setattr(
        packages, "find_spec", lambda name: None if name == "mininet" else object()
    )
    with pytest.raises(
        LabError, match=r"labs need the package mininet; .*ringlight\[emulate\]"
    ):
        packages.check_packages()


def test_simulating_and_reporting_import_no_package_of_an_extra(tmp_path: Path) -> None:
    """In an environment without the extras, as pip makes it by default."""
    code = """
import sys
from importlib import metadata

class Refuse:
    names = {"docker", "fastapi", "h11", "httptools", "mininet", "os_ken", "prometheus_client", "google",
             "pyroute2", "routes", "uvicorn", "uvloop", "webob", "distributed", "numba", "torch", "pandas"}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
from ringlight.experiments.cli.app import main
main()
"""
    (tmp_path / "base.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}

    def base(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(tmp_path / "base.py"), *words], cwd=tmp_path, env=environment, text=True,
            capture_output=True, timeout=120, check=False,
        )  # fmt: skip

    for words in (
        ("examples", "copy", "queue"),
        ("check", "queue.yaml"),
        ("simulate", "queue.yaml"),
    ):
        done = base(*words)
        assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    for words in (("report", str(run)), ("results", str(run))):
        assert base(*words).returncode == 0
    done = base("run", "queue.yaml")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "ringlight[emulate]" in done.stderr


def test_what_an_extension_lacks_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(**_: object) -> None:
        raise ExtensionError("cannot be loaded") from ModuleNotFoundError(name="docker")

    monkeypatch.setattr(app, "add_commands", lambda: None)
    monkeypatch.setattr(app, "app", command)
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "ringlight: cannot be loaded\n"
        "ringlight: docker is not installed; install it with: pip install 'ringlight[emulate]'\n"
    )


def test_an_extension_whose_package_is_missing_names_the_extra() -> None:
    installed = InstalledExtension(Extension(name="far"), "far_away")
    with pytest.raises(ExtensionError) as raised:
        installed.load("module")
    missing = extras.missing_in(raised.value)
    assert missing is not None
    assert missing.name == "far_away"
    assert extras.missing_in(ValueError("x")) is None


def test_a_switch_alone_serves_the_protocols_whose_packages_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings("ocs", 8, profiles()["mems"])
    every = [name for name, _ in alone.checked(settings).serve]
    real = alone.protocol_named

    def named(name: str) -> ManagementProtocol:
        if name == every[-1]:
            raise ExtensionError("cannot be loaded") from ModuleNotFoundError("far")
        if name == "broken":
            raise ExtensionError("cannot be loaded") from AttributeError("x")
        return real(name)

    monkeypatch.setattr(alone, "protocol_named", named)
    served = [name for name, _ in alone.checked(settings).serve]
    assert served == every[:-1]
    with pytest.raises(ExtensionError):
        alone.is_installed("broken")


def test_no_message_points_to_a_page_that_an_installed_package_lacks() -> None:
    pointing = []
    for path in sorted(ROOT.glob("src/ringlight/*/**/*.py")):
        tree = ast.parse(path.read_text())
        # Docstrings are for who reads the sources.
        docstrings = {
            id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
        }
        pointing += [
            f"{path.relative_to(ROOT)}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
            and re.search(r"\b(docs/[\w-]+\.md|CONTRIBUTING\.md)\b", node.value)
        ]
    assert pointing == []


def test_every_listed_example_is_there_and_every_file_is_listed() -> None:
    from ringlight.experiments.language.bundled import SCENARIOS, listed

    files = {str(path.relative_to(SCENARIOS)) for path in SCENARIOS.rglob("*.yaml")}
    assert set(listed()) == files


def test_examples_are_copied_and_never_over_others(
    tmp_path: Path,
) -> None:
    done = ringlight("examples", "copy", "queue", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["queue.yaml"]
    again = ringlight("examples", "copy", "queue", folder=tmp_path)
    assert (again.returncode, "exists already" in again.stderr) == (1, True)
    unknown = ringlight("examples", "copy", "nothing", folder=tmp_path)
    assert (
        unknown.returncode,
        unknown.stderr.startswith("ringlight: there is no example nothing"),
    ) == (
        2,
        True,
    )


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_shells_complete_commands(shell: str) -> None:
    words = {
        "COMP_WORDS": "ringlight sim",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "ringlight sim",
    }
    done = ringlight(**{"_RINGLIGHT_COMPLETE": f"complete_{shell}", **words})
    assert "simulate" in done.stdout
    script = ringlight(_RINGLIGHT_COMPLETE=f"source_{shell}")
    assert "_RINGLIGHT_COMPLETE" in script.stdout
