"""A job's settings have one description, which scenario, request and worker share."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from pydantic import ValidationError

from ringlight.containers.worker.spec import WorkerSpec
from ringlight.controller.rest.requests import JobRequest
from ringlight.workloads.job_settings import LIMITS, TRAINING, Limit

REQUEST: dict[str, Any] = {
    "name": "red",
    "gpus": 2,
    "gradient_bytes": 9640,
    "compute_s": 0.0,
    "iterations": 1,
    "on_loss": "shrink",
}


def taken(name: str, value: float) -> bool:
    try:
        request = JobRequest.model_validate({**REQUEST, name: value})
    except ValidationError:
        return False
    return bool(getattr(request, name) == value)


@pytest.mark.parametrize("name", LIMITS)
def test_a_request_is_held_to_the_limits_of_each_setting(name: str) -> None:
    limit = LIMITS[name]
    step = limit.step or 1
    for value in (
        limit.least - step,
        limit.least,
        limit.least + step,
        limit.most,
        limit.most + step,
    ):
        assert taken(name, value) == limit.admits(value), value


def test_a_limit_may_leave_out_its_least_and_all_that_is_no_multiple() -> None:
    limit = Limit(0, 8, above=True, step=4)
    assert [value for value in range(-4, 13) if limit.admits(value)] == [4, 8]


def test_a_worker_is_told_nothing_that_it_does_not_know() -> None:
    most = {name: limit.most for name, limit in LIMITS.items()}
    settings = JobRequest.model_validate({**REQUEST, **most}).worker_settings()
    assert settings.keys() >= {*TRAINING, *LIMITS}
    assert settings.keys() <= {entry.name for entry in fields(WorkerSpec)}


def test_what_is_not_given_is_the_workers_to_choose() -> None:
    settings = JobRequest.model_validate(REQUEST).worker_settings()
    assert "learning_rate" not in settings
    spec = WorkerSpec("red", 0, 2, ("10.0.0.1", "10.0.0.2"), **settings)
    assert spec.learning_rate == 0.05
