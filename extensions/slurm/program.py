"""A Slurm cluster as a program of labs. The fabric file's readers load this, too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringlight.extensions.slurm.process import SlurmCluster, read_cluster


@dataclass(frozen=True)
class SlurmKind:
    controller: None = None
    missing: str = ""
    fact: tuple[str, str] = ("slurm", "--slurm-mode")

    def options(self) -> type[Any]:
        from ringlight.extensions.slurm.options import SlurmOptions

        return SlurmOptions

    def read(self, path: Path) -> SlurmCluster:
        """Return the cluster that a file describes. Raises OSError, ValueError."""
        return read_cluster(path)

    def lab_of(self, pid: int) -> str | None:
        """Return the lab of a step of a job, or of another process of Slurm without the label; None for others."""
        from ringlight.extensions.slurm.steps import lab_of

        return lab_of(pid)


SLURM = SlurmKind()
