"""Compiles eBPF programs, and small programs of the machine's own, once per content.

The object file's name carries a hash of the source and of the compiler's arguments, so a changed source
is a new file and an unchanged one costs a read.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from pathlib import Path

#: Headers that the programs share.
HEADERS = Path(__file__).parent
BUILD_DIRECTORY = Path(__file__).resolve().parents[3] / "build"
COMPILE_TIMEOUT_S = 120.0
_FLAGS = ("-O2", "-g", "-Wall", "-Werror", "-target", "bpf")
_OWN_FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror")


class BuildError(RuntimeError):
    """The program could not be compiled; the message is one line."""


def _includes() -> list[str]:
    # Debian keeps asm/types.h under the machine's triplet, which clang does not search for -target bpf.
    return [f"-I/usr/include/{platform.machine()}-linux-gnu", f"-I{HEADERS}"]


def build_object(
    source: Path, directory: Path = BUILD_DIRECTORY, *, clang: str = "clang"
) -> Path:
    """Compile ``source`` into ``directory`` unless that has been done, and return the object file.

    Safe if other processes do the same at the same time. Raises BuildError.
    """
    return _built(source, directory, [clang, *_FLAGS, *_includes(), "-c"], ".o")


def build_program(source: Path) -> Path:
    """Compile ``source`` to an executable program unless that has been done, and return the program. Raises
    BuildError."""
    return _built(source, BUILD_DIRECTORY, ["clang", *_OWN_FLAGS], "")


def _built(source: Path, directory: Path, command: list[str], suffix: str) -> Path:
    texts = [
        source.read_bytes(),
        *(path.read_bytes() for path in sorted(HEADERS.glob("*.h"))),
    ]
    digest = hashlib.sha256(
        "\0".join(command[1:]).encode() + b"".join(texts)
    ).hexdigest()[:16]
    target = directory / f"{source.stem}-{digest}{suffix}"
    if target.is_file():
        return target
    directory.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        dir=directory, prefix=f".{source.stem}-", suffix=suffix
    )
    os.close(handle)
    temporary = Path(name)
    try:
        result = subprocess.run(
            [*command, str(source), "-o", str(temporary)],
            capture_output=True,
            text=True,
            timeout=COMPILE_TIMEOUT_S,
            check=False,
        )
        if result.returncode:
            lines = [
                line for line in result.stderr.splitlines() if "error" in line
            ] or ["no message"]
            raise BuildError(
                f"{source.name}: clang failed ({result.returncode}): {lines[0]}"
            )
        temporary.chmod(0o644 if suffix else 0o755)
        temporary.replace(target)
    except FileNotFoundError:
        raise BuildError(f"{source.name}: {command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise BuildError(
            f"{source.name}: {command[0]} took more than {COMPILE_TIMEOUT_S:g} s"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    return target
