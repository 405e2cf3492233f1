"""The same test, over a link that is built at half of its rate while nobody else is told: it must fail."""

import pytest
from test_collectives import test_all_reduce

__all__ = ["test_all_reduce"]
pytestmark = pytest.mark.ringlight("fabric.yaml", slowed={"g2": 0.5})
