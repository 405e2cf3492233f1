"""The process of applications as a program of labs. The fabric file's readers load this, too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringlight.extensions.applications.process import APP, Applications


@dataclass(frozen=True)
class ApplicationsKind:
    controller: str = APP
    missing: str = "no application was given (--app FILE)"
    fact: tuple[str, str] = ("apps", "--app")

    def options(self) -> type[Any]:
        from ringlight.extensions.applications.options import ApplicationOptions

        return ApplicationOptions

    def read(self, path: Path) -> Applications:
        """Return what :meth:`Applications.write` wrote into a file. Raises OSError, ValueError."""
        from pydantic import TypeAdapter

        return TypeAdapter(Applications).validate_json(path.read_bytes())

    def lab_of(self, pid: int) -> None:
        """Return None: all of its processes show their label."""


APPLICATIONS = ApplicationsKind()
