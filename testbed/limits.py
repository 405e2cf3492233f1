"""Limits of the whole machine that labs need greater: raised while one lives, and then as they were.

Sockets of workers have long buffers, an optical switch is told of many links at once, frames wait for a
processor that is busy, and a GPU has many neighbours. What belongs to a network namespace is set in the labs'
own (``namespaces.configure_namespace``).
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

SYSCTLS = Path("/proc/sys")
#: What was there before, by path below :data:`SYSCTLS`. Not among the labs' own files: it outlives each.
BEFORE = Path("/run/ringlight-limits.json")
#: No limit is lower than this while a lab lives; those that Mininet sets, except those that labs do without.
LEAST = {
    # One for each worker that waits for its release.
    "fs/inotify/max_user_instances": 8192,
    "net/core/wmem_max": 16 << 20,
    "net/core/rmem_max": 16 << 20,
    "net/core/netdev_max_backlog": 5000,
    "net/ipv4/neigh/default/gc_thresh1": 4096,
    "net/ipv4/neigh/default/gc_thresh2": 8192,
    "net/ipv4/neigh/default/gc_thresh3": 16384,
}


def enlarge() -> None:
    """Raise what is too low. No harm if that is not allowed, as inside a container."""
    values: dict[str, int] = {}
    for name in LEAST:
        with suppress(OSError, ValueError):
            values[name] = int((SYSCTLS / name).read_text())
    low = {name: value for name, value in values.items() if value < LEAST[name]}
    if not low:
        return
    _remember(low)
    for name in low:
        with suppress(OSError):
            (SYSCTLS / name).write_text(str(LEAST[name]))


def _remember(values: dict[str, int]) -> None:
    """Write down what is there, unless that was done before: another lab may come up now, too."""
    draft = BEFORE.with_name(f"{BEFORE.name}.{os.getpid()}")
    with suppress(OSError):
        draft.write_text(json.dumps(values), encoding="utf-8")
        try:
            os.link(draft, BEFORE)
        finally:
            draft.unlink()


def give_back() -> None:
    """Set raised limits back, unless they were changed since."""
    try:
        before: dict[str, int] = json.loads(BEFORE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    for name, value in before.items():
        with suppress(OSError, ValueError):
            if int((SYSCTLS / name).read_text()) == LEAST[name]:
                (SYSCTLS / name).write_text(str(value))
    BEFORE.unlink(missing_ok=True)
