"""Optical switches that SONiC runs on: REST and gNMI."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="sonic",
    requires=("gnmi", "http"),
    drivers={"sonic-ocs": "products:REST", "sonic-ocs-gnmi": "products:GNMI"},
    protocols={"sonic-ocs": "emulation.rest:PROTOCOL", "sonic-ocs-gnmi": "emulation.gnmi:PROTOCOL"},
    profiles={"sonic-ocs": "products:SONIC_OCS"},
    rigs={"sonic-ocs": "rigs:SonicRestRig", "sonic-ocs-gnmi": "rigs:SonicGnmiRig"},
)
