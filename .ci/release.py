#!/usr/bin/env python3
"""Makes a release of the commit that is checked out: its archives, tried in an empty environment, and its tag.

    .venv/bin/python .ci/release.py            # builds and tries; makes no tag
    .venv/bin/python .ci/release.py --tag      # the same, and then the annotated tag

The version is that of ``pyproject.toml``; ``CITATION.cff`` must have the same. What changed is its section of
``CHANGELOG.md``, which becomes the tag's message. The source archive and the wheel are made from a copy of the
commit and left in ``dist/``. The wheel is installed into an environment made for it, where it prints its version,
lists its examples and simulates one. Nothing is uploaded: the commands that do it are printed.

A tree with changes, a tag that exists and a version without a section are refused.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = "queue"
#: A step that takes longer is ended, seconds.
DEADLINE_S = 600


def say(text: str) -> None:
    sys.stderr.write(f"release: {text}\n")
    sys.stderr.flush()


def fail(text: str) -> NoReturn:
    say(text)
    raise SystemExit(1)


def run(*command: str | Path, folder: Path, **environment: str) -> str:
    """Return what a command prints. Exits with its last line if it fails or does not end."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        fail(str(error))
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        fail(f"{' '.join(words)} failed: {''.join(last) or done.returncode}")
    return done.stdout


def version_of(pyproject: str) -> str:
    version: str = tomllib.loads(pyproject)["project"]["version"]
    return version


def section(changelog: str, version: str) -> str:
    """Return the text of a version's section without its heading; empty if there is none."""
    heading = rf"^## \[?{re.escape(version)}\]?(?: [^\n]*)?$"
    match = re.search(
        rf"{heading}\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    return match[1].strip() if match else ""


def check(tag: str, version: str, notes: str) -> None:
    """Exit with one line if this commit cannot become the release."""
    if changed := run("git", "status", "--porcelain", folder=ROOT):
        fail(
            f"the tree has changes, {changed.splitlines()[0].strip()} among them; commit them first"
        )
    if run("git", "tag", "--list", tag, folder=ROOT):
        fail(f"the tag {tag} exists; give pyproject.toml a new version")
    if not notes:
        fail(f"CHANGELOG.md has no section ## [{version}] that says anything")
    cited = re.search(
        r"^version: [\"']?([^\"'\n]+)",
        (ROOT / "CITATION.cff").read_text(),
        re.MULTILINE,
    )
    if cited is None or cited[1] != version:
        fail(f"CITATION.cff has not the version {version} of pyproject.toml")


def build(scratch: Path) -> list[Path]:
    """Make the source archive, and the wheel from it, of the commit. Return both, in ``dist/``."""
    say("making the archives …")
    source = scratch / "source"
    source.mkdir()
    run("git", "archive", "-o", scratch / "commit.tar", "HEAD", folder=ROOT)
    run("tar", "-xf", scratch / "commit.tar", folder=source)
    made = scratch / "made"
    uv = [
        sys.executable,
        "-m",
        "uv",
        "build",
        "-q",
        "--no-build-isolation",
        "--python",
        sys.executable,
    ]
    run(*uv, "-o", made, folder=source)
    archives = sorted([*made.glob("*.whl"), *made.glob("*.tar.gz")])
    (ROOT / "dist").mkdir(exist_ok=True)
    return [Path(shutil.copy(archive, ROOT / "dist")) for archive in archives]


def try_wheel(wheel: Path, version: str, scratch: Path, *, borrow: bool) -> None:
    """Install the wheel into an empty environment and use it, outside of the tree."""
    say("trying the wheel in an empty environment …")
    place, outside = scratch / "environment", scratch / "outside"
    outside.mkdir()
    run(sys.executable, "-m", "venv", "--without-pip", place, folder=outside)
    python = place / "bin/python"
    install = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "-q",
        "--python",
        str(python),
    ]
    if borrow:
        (packages,) = place.glob("lib/python*/site-packages")
        (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
        install += ["--no-deps", "--offline"]
    run(*install, wheel, folder=outside)
    ringlight = place / "bin/ringlight"
    found = run(ringlight, "--version", folder=outside, PYTHONPATH="").strip()
    if found != version:
        fail(f"the wheel says that it is {found}, not {version}")
    where = run(
        python,
        "-c",
        "import ringlight; print(ringlight.__file__)",
        folder=outside,
        PYTHONPATH="",
    )
    if not Path(where.strip()).is_relative_to(place):
        fail(f"what was tried is not the wheel but {where.strip()}")
    examples = run(ringlight, "examples", folder=outside, PYTHONPATH="")
    if EXAMPLE not in examples:
        fail(f"the wheel has no example {EXAMPLE}")
    run(ringlight, "examples", "copy", EXAMPLE, folder=outside, PYTHONPATH="")
    run(ringlight, "simulate", f"{EXAMPLE}.yaml", folder=outside, PYTHONPATH="")
    if not list(outside.glob("runs/*/report.html")):
        fail(f"the simulation of {EXAMPLE}.yaml left no report")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tag", action="store_true", help="make the annotated tag")
    borrow = "take dependencies from this environment, without an index"
    parser.add_argument("--borrow", action="store_true", help=borrow)
    options = parser.parse_args()
    version = version_of((ROOT / "pyproject.toml").read_text())
    tag = f"v{version}"
    notes = section((ROOT / "CHANGELOG.md").read_text(), version)
    check(tag, version, notes)
    with tempfile.TemporaryDirectory(prefix="ringlight-release-") as folder:
        archives = build(Path(folder))
        (wheel,) = [archive for archive in archives if archive.suffix == ".whl"]
        try_wheel(wheel, version, Path(folder), borrow=options.borrow)
    for archive in archives:
        say(f"{archive.relative_to(ROOT)}: {archive.stat().st_size / 1e6:.1f} MB")
    if options.tag:
        # Headings of the changelog begin with #, which git would take for comments.
        message = f"Ringlight {version}\n\n{notes}\n"
        run("git", "tag", "-a", "--cleanup=verbatim", "-m", message, tag, folder=ROOT)
        say(f"made the tag {tag}; to publish:")
    else:
        say(f"made no tag; with --tag it is {tag}. To publish then:")
    sys.stdout.write(
        f"git push origin {tag}\nuv publish {' '.join(str(a.relative_to(ROOT)) for a in archives)}\n"
    )


if __name__ == "__main__":
    main()
