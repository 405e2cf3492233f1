"""Claims that no epilog releases: of jobs that ended while the controller was away, or that slurmctld forgot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ringlight.extensions.slurm.prolog import PREFIX, release
from ringlight.extensions.slurm.rest import call
from ringlight.extensions.slurm.scontrol import slurm
from ringlight.extensions.slurm.site import Site

#: States of jobs that have nodes, or whose epilog still runs.
_HAVE_NODES = "R,CF,CG,S,ST,SO"

#: A claim: its name, and when it was asked for, CLOCK_MONOTONIC seconds.
LeftClaim = tuple[str, float]


def left_claims(
    claims: Iterable[Mapping[str, Any]], jobs: Collection[str]
) -> set[LeftClaim]:
    """Return the claims of jobs of Slurm that have no nodes. ``jobs``: numbers of those that have."""
    return {
        (claim["name"], claim["asked_s"])
        for claim in claims
        if claim["state"] != "FAILED"
        and (number := claim["name"].removeprefix(PREFIX)) != claim["name"]
        and number.isdigit()
        and number not in jobs
    }


class LeftClaims:
    """Releases claims that two checks one after another find left."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._before: set[LeftClaim] = set()

    def release(self) -> list[str]:
        """Check once, and return the names of the claims released. Raises SlurmError.

        The claims are read first: a job that starts afterwards has its nodes when Slurm is asked.
        """
        claims = call(self._site, "GET", "/v1/claims")
        words = ("squeue", "--noheader", "--format=%A", f"--states={_HAVE_NODES}")
        left = left_claims(claims, slurm(*words).split())
        names = sorted(name for name, _ in left & self._before)
        self._before = left
        for name in names:
            release(self._site, name)
        return names
