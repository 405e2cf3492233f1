import pytest

# GPUs, switches, fibres; or the same as a mapping in Python.
pytestmark = pytest.mark.ringlight("fabric.yaml")


def test_all_reduce(ringlight_lab):
    table = ringlight_lab.bench("all-reduce", sizes="16MiB..256MiB")
    assert ringlight_lab.slow_links() == []
    assert table.at("256MiB").busbw_bps > 0.7 * 25e9
