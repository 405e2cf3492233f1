"""Compilation of the SPANK plug-in, whose source is ``spank.c`` beside this file."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ringlight.extensions.slurm.partitions import SlurmError

SOURCE = Path(__file__).with_name("spank.c")
_HEADER = Path("/usr/include/slurm/spank.h")
COMPILE_S = 60.0


def compile_plugin(output: Path) -> Path:
    """Compile the plug-in into a shared object and return its path.

    Raises SlurmError with the package to install, or the compiler's first error.
    """
    if not _HEADER.exists():
        raise SlurmError(f"{_HEADER} is missing: apt-get install libslurm-dev")
    words = [
        "clang",
        "-shared",
        "-fPIC",
        "-O2",
        "-Wall",
        "-Werror",
        "-o",
        str(output),
        str(SOURCE),
    ]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=COMPILE_S, check=False
        )
    except FileNotFoundError:
        raise SlurmError("clang is not installed: apt-get install clang") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{SOURCE}: not compiled after {COMPILE_S:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line]
        raise SlurmError(
            f"{SOURCE} cannot be compiled: {(lines or ['clang failed'])[0]}"
        )
    return output
