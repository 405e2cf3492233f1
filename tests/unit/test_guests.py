"""The seam for guests: kinds of programs that run beside a job's workers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from ringlight.controller.rest import requests
from ringlight.controller.rest.body import Body
from ringlight.experiments.language import spec
from ringlight.experiments.language.job_keys import JobKeys
from ringlight.testbed.emulation.agent import invitation
from ringlight.testbed.emulation.guests import GuestPlan

REQUEST = {
    "name": "red",
    "gpus": 2,
    "gradient_bytes": 9640,
    "compute_s": 0.0,
    "iterations": 1,
}
SHELL = {"name": "red", "gpus": 2, "workload": "shell"}


class ShellJob(JobKeys):
    shell: str | None = None


class Shell(Body):
    line: str
    deadline_s: float = 9.0


def invite(
    host: str, settings: dict[str, Any], peers: list[str], image: str | None
) -> tuple[Any, ...]:
    return host, settings["line"], peers, image


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind of guests of nobody's extension."""
    kind = SimpleNamespace(
        job=lambda: ShellJob, body=lambda: Shell, invite=lambda: invite
    )
    for module in (spec, requests, invitation):
        monkeypatch.setattr(module, "guest_kinds", lambda: {"shell": kind})


def said(call: Callable[[], object]) -> str:
    with pytest.raises(ValidationError) as caught:
        call()
    return str(caught.value)


@pytest.mark.usefixtures("shell")
def test_a_kind_adds_keys_to_a_job() -> None:
    job = spec._with_guests().model_validate({"gpus": 2, "shell": "ls"})
    assert job.model_dump()["shell"] == "ls"
    assert "shell" in said(lambda: JobKeys.model_validate({"gpus": 2, "shell": "ls"}))


@pytest.mark.usefixtures("shell")
def test_a_kind_adds_a_workload_and_its_key_to_a_request() -> None:
    request = requests._with_extensions()
    settings = request.model_validate(
        {**SHELL, "shell": {"line": "ls"}}
    ).worker_settings()
    assert (settings["workload"], settings["shell"]) == (
        "shell",
        {"line": "ls", "deadline_s": 9.0},
    )
    together = "workload {} and shell do not go together"
    assert together.format("shell") in said(lambda: request.model_validate(SHELL))
    assert together.format("train") in said(
        lambda: request.model_validate({**REQUEST, "shell": {"line": "ls"}})
    )
    assert "Input should be 'train', 'graph', 'linktest' or 'shell'" in said(
        lambda: request.model_validate({**REQUEST, "workload": "ftp"})
    )


@pytest.mark.usefixtures("shell")
def test_a_kind_makes_its_guests_beside_workers() -> None:
    host: Any = "red-0"
    made: Any = invitation.invite(
        GuestPlan("shell", {"line": "ls"}), host, ["10.0.0.1"], None
    )
    assert made == ("red-0", "ls", ["10.0.0.1"], None)
    with pytest.raises(ValueError, match="there are no guests of kind ftp here"):
        invitation.invite(GuestPlan("ftp", {}), host, [], None)
