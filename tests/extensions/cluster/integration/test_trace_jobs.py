"""The example of a trace on the testbed, in small."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extensions.cluster.example import EXAMPLE, assert_fibre_moved
from tests.integration.test_examples import (
    carried_out,
    nothing_is_made_once_more,
    small,
)

__all__ = ["nothing_is_made_once_more"]
pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


def test_jobs_of_a_trace_on_the_testbed(tmp_path: Path) -> None:
    experiment = small(EXAMPLE, {"jobs.trace.generate.duration": "180 s"})
    (run,), _ = carried_out(experiment, tmp_path, "namespace", *experiment.arms)
    assert_fibre_moved(run)
