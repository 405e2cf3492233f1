"""Interface between jobs and light: a provider lights planes of one kind for jobs.

The job manager knows providers by the kind of plane that they light, and asks the plane of a job for
everything else (``fabric.planes``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar


class Light(Protocol):
    """Light of a job, as its provider planned it. Only the provider knows more about it than this protocol.

    ``place``: name of the plane. ``nodes``: GPUs in rank order. ``switches``: switches that carry something
    for the job.
    """

    @property
    def place(self) -> str: ...

    @property
    def nodes(self) -> tuple[str, ...]: ...

    @property
    def switches(self) -> Sequence[str]: ...


L = TypeVar("L", bound=Light)


class LightProvider(Protocol[L]):
    """Plans, sets and takes away the light of jobs on planes of one kind. Safe from any thread.

    The same plane, nodes (in rank order) and settings always give the same light, so that after a restart a
    job's light follows from what is stored of the job. ``alone``: a job has its plane for itself, and cannot
    go on on other nodes.
    """

    alone: bool

    def plan(
        self, plane: Any, nodes: tuple[str, ...], settings: Mapping[str, Any]
    ) -> L:
        """Return the light that a job on these nodes would get, without any effect. ``settings``: the
        workers' settings.

        Raises InvalidError for what can never be provided.
        """

    def check(self, light: L) -> None:
        """Ask everything that the light needs whether it is there. Raises the first ControllerError."""

    def light(self, job_id: str, light: L) -> None:
        """Set it, read back, before the job's workers start. May be repeated.

        Raises ControllerError; what was done until then stays until :meth:`clear`.
        """

    def adopt(self, job_id: str, light: L) -> None:
        """Take over a job that an earlier controller lit and that still runs. Never stops it."""

    def clear(self, job_id: str, light: L) -> list[str]:
        """Remove the light once the job's workers have gone. Return one line for each failure.

        May be called again.
        """
