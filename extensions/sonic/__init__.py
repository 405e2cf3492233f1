"""Optical switches that SONiC runs on: REST and gNMI."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(name="sonic", requires=("gnmi", "http"))
