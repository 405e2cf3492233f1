"""Optical switches that SONiC runs on: REST and gNMI."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="sonic",
    requires=("gnmi", "http"),
    drivers={
        "sonic-ocs": "sonic_products:REST",
        "sonic-ocs-gnmi": "sonic_products:GNMI",
    },
    protocols={
        "sonic-ocs": "emulation.sonic_rest:PROTOCOL",
        "sonic-ocs-gnmi": "emulation.sonic_gnmi:PROTOCOL",
    },
    profiles={"sonic-ocs": "sonic_products:SONIC_OCS"},
    rigs={
        "sonic-ocs": "sonic_rigs:SonicRestRig",
        "sonic-ocs-gnmi": "sonic_rigs:SonicGnmiRig",
    },
)
