"""Claims of jobs of Slurm that no epilog releases."""

from __future__ import annotations

from typing import Any

import pytest

from ringlight.extensions.slurm import left_claims
from ringlight.extensions.slurm.left_claims import LeftClaims
from ringlight.extensions.slurm.site import Site


def claim(name: str, asked_s: float = 1.0, state: str = "ACTIVE") -> dict[str, Any]:
    return {"name": name, "asked_s": asked_s, "state": state}


def test_only_claims_of_jobs_without_nodes_are_left() -> None:
    names = ["slurm-1", "slurm-2", "slurm-x", "mine", "1"]
    claims = [*map(claim, names), claim("slurm-3", state="FAILED")]
    assert left_claims.left_claims(claims, {"2"}) == {("slurm-1", 1.0)}


def test_a_claim_is_released_when_two_checks_find_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims, released = [claim("slurm-1")], list[str]()
    monkeypatch.setattr(left_claims, "call", lambda *_: claims)
    monkeypatch.setattr(left_claims, "slurm", lambda *_: "")
    monkeypatch.setattr(left_claims, "release", lambda _, name: released.append(name))
    checks = LeftClaims(Site("http://h", (), {}))
    assert checks.release() == []
    # Of a new start of the job.
    claims[0] = claim("slurm-1", 2.0)
    assert checks.release() == []
    assert checks.release() == ["slurm-1"] == released
