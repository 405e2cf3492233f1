"""What the follower reports, and what health says of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import ValidationError

from ringlight.controller.bus import EventBus
from ringlight.experiments.client import Unreachable
from ringlight.extensions.slurm import follower_routes
from ringlight.extensions.slurm.follow import Follower
from ringlight.extensions.slurm.follower_routes import (
    FollowerReport,
    FollowerState,
    router,
)
from ringlight.extensions.slurm.partitions import Partition
from ringlight.extensions.slurm.site import FOLLOWER_PATH as PATH
from ringlight.extensions.slurm.site import Site


def report(**changed: object) -> FollowerReport:
    document = {"generation": 3, "drained": ["g1"], "problem": None, **changed}
    return FollowerReport.model_validate(document)


def test_a_report_is_news_once() -> None:
    state = FollowerState()
    assert state.document() is None
    assert state.take(report())
    assert not state.take(report())
    assert state.take(report(generation=4))
    document = state.document()
    assert document is not None
    assert (document.generation, document.drained) == (4, ["g1"])


def test_health_names_a_problem_and_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    state = FollowerState()
    assert state.complaint() is None
    state.take(report())
    assert state.complaint() is None
    state.take(report(problem="scontrol: not done after 3 s"))
    assert state.complaint() == "Slurm follower: scontrol: not done after 3 s"
    monkeypatch.setattr(follower_routes, "SILENT_S", -1.0)
    assert state.complaint() == "the Slurm follower has been silent for 0 s"
    # It was ended in order.
    state.take(None)
    assert state.complaint() is None


async def _requests(app: FastAPI) -> dict[str, Any]:
    """Report three times, and read and end the follower. Return what was read."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://lab") as client:
        for generation in (3, 3, 4):
            body = report(generation=generation).model_dump()
            assert (await client.put(PATH, json=body)).is_success
        document: dict[str, Any] = (await client.get(PATH)).json()
        assert (await client.delete(PATH)).is_success
    return document


def test_each_new_report_is_an_event() -> None:
    bus, app, state = EventBus(), FastAPI(), FollowerState()
    app.include_router(router(bus, state))
    news = bus.subscribe()
    document = asyncio.run(_requests(app))
    assert (document["generation"], document["drained"]) == (4, ["g1"])
    assert [event["generation"] for event in news.take()] == [3, 4]
    assert state.document() is None


@pytest.mark.parametrize(
    "changed",
    [{"generation": -1}, {"drained": "g1"}, {"problem": "x" * 1001}, {"more": 1}],
)
def test_other_reports_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        report(**changed)


def test_a_long_problem_is_reported_as_far_as_the_controller_takes_it(
    tmp_path: Path,
) -> None:
    sent: list[dict[str, Any]] = []

    def get(path: str) -> None:
        raise Unreachable("no answer " * 300)

    site = Site("http://127.0.0.1:1", (Partition("a", "follow", ("g0",)),), {})
    follower = Follower(site, tmp_path, lambda _: None)
    follower._api = SimpleNamespace(get=get, put=lambda _, body: sent.append(body))  # type: ignore[assignment]
    follower._attend()
    report = FollowerReport.model_validate(sent[-1])
    assert (report.problem or "").startswith("no answer no answer")
