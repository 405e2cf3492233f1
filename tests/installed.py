"""Packages of ``docs/`` as pip leaves them, and commands that find them beside Ringlight."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ringlight.containers.image import ROOT
from ringlight.testbed.process_start import SOCKET

COMMAND = (sys.executable, "-m", "ringlight.experiments.cli.app")


def install(package: Path, folder: Path) -> Path:
    """Install a package's folder into ``folder``. Return where it then is."""
    source, target = folder / "package", folder / "installed"
    shutil.copytree(package, source, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [] if importlib.util.find_spec("pip") else ["uv"]
    words = [
        sys.executable,
        "-m",
        *pip,
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
    ]
    subprocess.run(
        [*words, "--no-index", "--target", target, source], check=True, timeout=120
    )
    return target


def finding(target: Path) -> Mapping[str, str]:
    """Return the variables of a process that finds what is installed there."""
    path = [str(target), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    # A fork server of the tests has read the extensions before this one was there.
    rest = {name: value for name, value in os.environ.items() if name != SOCKET}
    return {**rest, "PYTHONPATH": os.pathsep.join(filter(None, path)), "NO_COLOR": "1"}


def ringlight(
    environment: Mapping[str, str], *words: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what came of it."""
    return subprocess.run(
        [*COMMAND, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
