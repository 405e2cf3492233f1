"""Optical switches of Polatis (HUBER+SUHNER): TL1, RESTCONF, NETCONF, and the products' SCPI."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="polatis",
    requires=("http", "tl1"),
    drivers={
        "polatis-scpi": "polatis_products:POLATIS_SCPI",
        "polatis-tl1": "polatis_products:TL1",
        "polatis-netconf": "polatis_products:NETCONF",
        "polatis-restconf": "polatis_products:RESTCONF",
    },
    profiles={
        "polatis-7000": "polatis_products:POLATIS_7000",
        "polatis-6000": "polatis_products:POLATIS_6000",
    },
)
