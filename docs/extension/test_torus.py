"""The torus on the testbed, by the pytest plug-in of Ringlight: run ``pytest`` as root."""

from typing import Any

import pytest


@pytest.mark.ringlight("torus.yaml", arm="by-job")
def test_an_all_reduce_passes_only_links_between_neighbours(ringlight_lab: Any) -> None:
    found = ringlight_lab.run("by-job")
    assert found.value("torus_links", subject="job train") == 1
    assert found.value("state", subject="job train") == "SUCCEEDED"
