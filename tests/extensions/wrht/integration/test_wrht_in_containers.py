"""WRHT in real containers over a packet switch gives the bits that one process gives."""

from __future__ import annotations

import pytest

from tests.integration.test_collectives import check_bits
from tests.integration.test_collectives import run as run
from tests.integration.test_collectives import shared as shared
from tests.integration.test_controller_jobs import Run

pytestmark = pytest.mark.root


@pytest.mark.parametrize(
    "pair", [{"wrht": 6}, {"wrht-2": 5, "wrht-2-exchange": 6}], ids=" and ".join
)
def test_containers_get_the_bits_that_one_process_gets(
    run: Run, pair: dict[str, int]
) -> None:
    check_bits(run, pair)
