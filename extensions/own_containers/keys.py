"""Check the mounts, devices and variables of a container of a user's image. All raise ValueError."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

#: What a container sees already; nothing is mounted over it.
TAKEN = ("/", "/job", "/tmp", "/proc", "/sys", "/dev", "/dev/shm")
#: The kernel's own, below which nothing can be mounted.
_KERNELS = ("/proc", "/sys")
#: By these a rank knows which one it is and where the others are.
OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")


def target(text: str) -> str:
    """Return where a container sees a file, without what a path can do without."""
    path = PurePosixPath(text)
    if not path.is_absolute() or ".." in path.parts or not text.isprintable():
        raise ValueError(f"{text!r:.60} is no absolute path in the container")
    # Two slashes at the beginning are one everywhere but in pathlib.
    path = PurePosixPath("/", *path.parts[1:])
    if str(path) in TAKEN or any(path.is_relative_to(folder) for folder in _KERNELS):
        raise ValueError(f"{text:.60}: a container has its own there")
    return str(path)


def device(text: str) -> str:
    """Return a device's path. Docker takes one with a colon for two, the second in the container."""
    path = PurePosixPath(text)
    if (
        not text.startswith("/dev/")
        or ".." in path.parts
        or ":" in text
        or not text.isprintable()
    ):
        raise ValueError(f"{text!r:.60} is no device, such as /dev/dri")
    return str(path)


def variable(text: str) -> str:
    """Return a variable's name that a job may set for its ranks."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError(
            f"{text!r:.60} is no name of a variable: letters, digits and _, no digit first"
        )
    if text in OF_RANKS or text.startswith("RINGLIGHT_"):
        raise ValueError("each rank is told its own by Ringlight")
    return text
