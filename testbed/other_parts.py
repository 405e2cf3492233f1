"""The contract of the parts of a lab that are elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ringlight.testbed.deaths import Death


class OtherParts(Protocol):
    """Parts of a lab that are elsewhere. ``mtu_bytes``: IP packets of workers are no longer."""

    mtu_bytes: int

    def begin(self, state: Path, runtime: str, options: Sequence[str]) -> list[str]:
        """Have them built with the options of all testbeds.

        Return the words after ``python`` that start the testbed of what is here, before its usual options: a
        program that calls ``testbed.emulation.__main__.main``. ``state``: the lab's. Raises LabError.
        """

    def check(self) -> None:
        """Check that all are being built or stand. Raises LabError if one could not be built or has ended."""

    def ended(self) -> list[Death]:
        """Return what ended, or is back, since the last call, besides what the testbed tells."""

    def facts(self) -> Mapping[str, Any]:
        """Return facts of the lab that follow from its parts, as they are now."""

    def loads(self) -> list[Mapping[str, float]]:
        """Return the load of the processors of each other machine since the last call, as
        ``testbed.load.Shares``.
        """

    def end(self, state: Path, logs: Path) -> None:
        """Wait until they have ended, and keep what they leave.

        ``state``: folder of the lab's files, ``logs``: for the output of its processes.
        """
