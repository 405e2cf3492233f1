"""Identify the code that computed something: a hash over the sources that can change a result."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_ROOMS = (
    "fabric",
    "workloads",
    "controller",
    "testbed",
    "containers/worker",
    "experiments",
)


@functools.cache
def code_version() -> str:
    """Return the first 16 digits of a SHA-256 over all Python and C sources of the product, with their
    names."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in (".py", ".c", ".h"):
                digest.update(str(path.relative_to(ROOT)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
