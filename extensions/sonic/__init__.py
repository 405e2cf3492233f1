"""Optical switches that SONiC runs on: REST and gNMI."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="sonic",
    requires=("gnmi", "http"),
    drivers={
        "sonic-ocs": "sonic_products:REST",
        "sonic-ocs-gnmi": "sonic_products:GNMI",
    },
    profiles={"sonic-ocs": "sonic_products:SONIC_OCS"},
)
