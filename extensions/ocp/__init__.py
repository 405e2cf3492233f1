"""Optical switches with the Open Compute Project's model, over gNMI."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="ocp",
    requires=("gnmi",),
    drivers={"ocp-gnmi": "ocp_products:GNMI"},
    profiles={"ocp": "ocp_products:OCP"},
)
