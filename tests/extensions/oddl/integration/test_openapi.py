"""What the API answers of planes and O-NICs where a grid has what the examples in its description name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.controller_rig import FABRIC
from tests.integration.test_controller_jobs import Run
from tests.integration.test_openapi import check_operations

pytestmark = pytest.mark.root

GRID = {"d": {"rows": 2, "columns": 2, "gpu": "tesla-m40", "rate": "10 Gbit/s"}}


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    run = Run({**FABRIC, "grids": GRID})
    try:
        yield run
    finally:
        run.close()


def test_operations_of_light_answer_as_described(run: Run, tmp_path: Path) -> None:
    options = ("--phases", "examples,fuzzing", "--max-examples", "2")
    paths = "^/v1/(planes|onics|light)"
    assert check_operations(run, tmp_path / "events.ndjson", options, paths) == set()
