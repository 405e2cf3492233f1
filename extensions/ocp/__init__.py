"""Optical switches with the Open Compute Project's model, over gNMI."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="ocp",
    requires=("gnmi",),
    drivers={"ocp-gnmi": "products:GNMI"},
    protocols={"ocp-gnmi": "emulation.gnmi:PROTOCOL"},
    profiles={"ocp": "products:OCP"},
    rigs={"ocp-gnmi": "rig:OcpRig"},
)
