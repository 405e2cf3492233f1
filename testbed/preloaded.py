"""Modules that a fork server imports for the processes of a lab because they take time, by program."""

from __future__ import annotations

from ringlight.testbed.devices import device_kinds

_EMULATION = "ringlight.testbed.emulation"
TESTBED = (f"{_EMULATION}.__main__", f"{_EMULATION}.testbed")
#: A training worker, and one that measures links.
WORKER = tuple(
    f"ringlight.containers.worker.{name}"
    for name in ("__main__", "linktest", "gradients", "run")
)
#: All that a lab may start.
_PROGRAMS = (
    *("ringlight.controller.__main__", "ringlight.controller.running"),
    *TESTBED,
    *(f"{_EMULATION}.{name}.__main__" for name in ("optical", "onic")),
    *WORKER,
)


def lab_modules() -> tuple[str, ...]:
    """Return all that a lab may start, devices of extensions among it."""
    return (
        *_PROGRAMS,
        *(module for kind in device_kinds().values() for module in kind.modules),
    )
