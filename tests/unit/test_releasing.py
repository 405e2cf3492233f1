"""``.ci/release.py``: what becomes a release, what it leaves, and what it refuses; and how to cite it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
#: What the archives are made of and what the program reads; a copy of a whole tree would have folders of runs.
PARTS = (
    *(".ci", ".gitignore", "CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in"),
    *("README.md", "pyproject.toml", "src", "containers", "controller", "experiments"),
    *("extensions", "fabric", "scenarios", "testbed", "workloads"),
)
HEAD = "## [9.8.7] - 2026-12-01\n\n### Added\n\n- Circuits of glass.\n\n"


def git(clone: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", clone, *words]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=30
    ).stdout


def release(clone: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, clone / ".ci/release.py", "--borrow", *options],
        cwd=clone, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose commit is ready to become version 9.8.7."""
    folder = tmp_path / "clone"
    folder.mkdir()
    without = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, symlinks=True, ignore=without)
        else:
            shutil.copy(source, folder)
    for name, was, now in (
        ("pyproject.toml", r'^version = "[^"]*"', 'version = "9.8.7"'),
        ("CITATION.cff", r"^version: [^\n]*", "version: 9.8.7"),
        ("CHANGELOG.md", r"\A(.*?)^## ", rf"\1{HEAD}## "),
    ):
        path = folder / name
        text = re.sub(was, now, path.read_text(), count=1, flags=re.M | re.S)
        path.write_text(text)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        git(folder, *words)
    # Its tags need somebody.
    git(folder, "config", "user.name", "a")
    git(folder, "config", "user.email", "a@b")
    return folder


@pytest.mark.labs
def test_a_release_is_two_archives_that_were_tried_and_a_tag(clone: Path) -> None:
    done = release(clone, "--tag")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "git push origin v9.8.7\n"
        "uv publish dist/ringlight-9.8.7-py3-none-any.whl dist/ringlight-9.8.7.tar.gz\n"
    )
    message = git(clone, "tag", "--list", "--format=%(objecttype) %(contents)")
    assert message.strip() == "tag Ringlight 9.8.7\n\n### Added\n\n- Circuits of glass."
    with zipfile.ZipFile(clone / "dist/ringlight-9.8.7-py3-none-any.whl") as wheel:
        assert "ringlight/scenarios/examples/queue.yaml" in wheel.namelist()
    with tarfile.open(clone / "dist/ringlight-9.8.7.tar.gz") as source:
        assert "ringlight-9.8.7/pyproject.toml" in source.getnames()
    assert git(clone, "status", "--porcelain") == ""

    again = release(clone, "--tag")
    assert (again.returncode, "the tag v9.8.7 exists" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("name", "was", "now", "line"),
    [
        ("README.md", "", "", "the tree has changes"),
        ("CHANGELOG.md", "## [9.8.7]", "## [9.8.6]", "no section ## [9.8.7]"),
        ("CHANGELOG.md", HEAD, "## [9.8.7]\n\n", "no section ## [9.8.7]"),
        ("CITATION.cff", "9.8.7", "9.8.6", "has not the version 9.8.7"),
    ],
)
def test_what_is_not_ready_is_refused_and_leaves_nothing(
    clone: Path, name: str, was: str, now: str, line: str
) -> None:
    path = clone / name
    if was:
        path.write_text(path.read_text().replace(was, now, 1))
        git(clone, "commit", "-qam", "two")
    else:
        path.write_text("x")
    done = release(clone, "--tag")
    assert done.returncode == 1
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert git(clone, "tag", "--list") == ""
    assert not (clone / "dist").exists()


def test_the_citation_is_of_this_version_and_names_its_authors() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert cited["message"]
    assert (cited["title"], cited["type"]) == ("Ringlight", "software")
    assert (cited["version"], cited["license"]) == (
        project["version"],
        project["license"],
    )
    assert (
        cited["authors"] == project["authors"] == [{"name": "The Ringlight developers"}]
    )
    assert len(set(cited["keywords"])) == len(cited["keywords"]) > 0
