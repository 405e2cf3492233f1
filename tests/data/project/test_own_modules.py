import pytest
from experiments.ring import busbw_over_algbw

pytestmark = pytest.mark.ringlight("fabric.yaml", lab="session")


def test_bus_bandwidth_is_that_of_nccl_tests(ringlight_lab):
    (measured,) = ringlight_lab.bench("all-reduce", sizes="16MiB", calls=1).sizes
    assert measured.busbw_bps == pytest.approx(measured.algbw_bps * busbw_over_algbw(4))
