"""Optical switches of Polatis (HUBER+SUHNER): TL1, RESTCONF, NETCONF, and the products' SCPI."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(name="polatis", requires=("http", "tl1"))
