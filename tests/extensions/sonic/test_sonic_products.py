"""What a switch speaks that SONiC runs on."""

from ringlight.fabric.optical_drivers import protocols_of


def test_it_speaks_rest_and_gnmi() -> None:
    assert protocols_of("sonic-ocs") == ("sonic-ocs", "sonic-ocs-gnmi")
