"""How large an environment with Ringlight's wheel and one extra is, and how long its installation takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import ROOT, check_known, show, tell

#: Without an extra, and with each that users install.
EXTRAS = (
    "base",
    "emulate",
    "chakra",
    "dask",
    "gnmi",
    "frames",
    "fast",
    "sip-ml",
    "onn",
)
#: Left out of the copy that the wheel is built from.
LEFT = (".*", "__pycache__", "build", "runs", "*.egg-info")
#: Longest time that one installation may take, seconds.
LONGEST_S = 1800.0
UV = Path(sys.executable).with_name("uv")


def extras(only: list[str] = list(EXTRAS)) -> dict[str, Any]:
    """Install the wheel of this tree with each of these extras into an environment of its own."""
    check_known("--only", only, EXTRAS)
    with TemporaryDirectory() as folder:
        source = Path(folder, "source")  # as building leaves files in the tree
        shutil.copytree(
            ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(*LEFT)
        )
        _run("build", "--quiet", "--wheel", "--out-dir", folder, source)
        (wheel,) = Path(folder).glob("*.whl")
        rows = [_installed(wheel, extra, Path(folder, "environment")) for extra in only]
    show(
        ["extra", "MB", "s"],
        [[row["extra"], row["megabytes"], row["seconds"]] for row in rows],
    )
    return {"extras": rows}


def _installed(wheel: Path, extra: str, environment: Path) -> dict[str, Any]:
    """Return the size of a new environment, MB of 1,000,000 bytes, and the time of its installation, seconds."""
    tell(f"{extra} …")
    _run("venv", "--quiet", "--clear", environment)
    began = time.monotonic()
    named = str(wheel) if extra == "base" else f"{wheel}[{extra}]"
    python = environment / "bin/python"
    _run("pip", "install", "--quiet", "--link-mode", "copy", "--python", python, named)
    seconds = round(time.monotonic() - began, 1)
    size = subprocess.run(
        ["du", "-s", "--block-size=1000000", environment],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return {
        "extra": extra,
        "megabytes": int(size.stdout.split()[0]),
        "seconds": seconds,
    }


def _run(*words: str | Path) -> None:
    subprocess.run([UV, *words], check=True, timeout=LONGEST_S)


PARTS = (extras,)
