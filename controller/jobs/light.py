"""The seam between jobs and light: whoever lights a kind of place for a job is a provider.

The job manager knows a provider by its kind only. A new kind of light is a provider, its name in ``Kind``,
and the key of that name in the requests and answers of the REST API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args

#: Kinds of places that are lit for each job, and the keys of a job's document that name the one it is on.
Kind = Literal["grid", "ring", "interconnect"]
KINDS: tuple[Kind, ...] = get_args(Kind)
#: Those whose light stands: workers do not ask for it, so they may send whatever they like.
STANDING: tuple[Kind, ...] = ("interconnect",)


class Place(NamedTuple):
    """One grid, ring, … of the fabric, by name."""

    kind: Kind
    name: str


class Light(Protocol):
    """What a job gets, as its provider planned it. Only the provider knows more of it than this.

    ``place``: the name of the grid, ring, …; ``nodes``: GPUs in rank order; ``switches``: those that carry
    something for the job.
    """

    @property
    def place(self) -> str: ...

    @property
    def nodes(self) -> tuple[str, ...]: ...

    @property
    def switches(self) -> Sequence[str]: ...


L = TypeVar("L", bound=Light)


class LightProvider(Protocol[L]):
    """Plans, sets and takes away the light of jobs on one kind of place. Safe from any thread.

    The same nodes (in rank order), settings and place always give the same light, so that after a restart a
    job's light follows from what is stored of the job. ``whole``: a job has its place for itself, and cannot
    go on on other nodes.
    """

    whole: bool

    def plan(
        self,
        wanted: Sequence[str] | int,
        settings: Mapping[str, Any],
        holders: Mapping[str, str],
        place: str | None = None,
    ) -> L | None:
        """What a job would get; None for one that is not meant for such a place. Touches nothing.

        ``wanted``: GPU names in rank order, or how many, of ``place`` if that is named; then the answer is
        not None. ``settings``: the workers'. ``holders``: the job that has each taken GPU. Raises
        InvalidError for what can never be, ConflictError for what cannot be now.
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
        """Take it away when the job's workers have gone; what did not work, one line each.

        May be repeated.
        """
