"""Every operation on slices of a live controller, called as its description says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extensions.slices.integration.test_slices_lab import FABRIC
from tests.integration.test_controller_jobs import Run
from tests.integration.test_openapi import check_operations

pytestmark = pytest.mark.root

CONFIGURATION = "tests/extensions/slices/integration/schemathesis.toml"
#: Operations that may not have succeeded once: there may be no slice of the example's name, or no spare cube.
MAY_NOT_SUCCEED = {
    f"{method} {prefix}/{{name}}{end}"
    for prefix in ("/v1/slices", "/apis/accelerator.gke.io/v1beta1/slices")
    for method, end in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/gpus"),
        ("POST", "/swap"),
    )
}


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with contextlib.closing(Run(FABRIC)) as run:
        yield run


def test_every_operation_answers_as_described(run: Run, tmp_path: Path) -> None:
    options = ("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "20")
    failed = check_operations(
        run, tmp_path / "events.ndjson", options, "/slices(/|$)", CONFIGURATION
    )
    assert failed <= MAY_NOT_SUCCEED
