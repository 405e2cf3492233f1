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
    protocols={
        "polatis-tl1": "emulation.polatis_tl1:PROTOCOL",
        "polatis-restconf": "emulation.polatis_restconf:PROTOCOL",
    },
    profiles={
        "polatis-7000": "polatis_products:POLATIS_7000",
        "polatis-6000": "polatis_products:POLATIS_6000",
    },
    rigs={
        "polatis-tl1": "polatis_rigs:PolatisTl1Rig",
        "polatis-restconf": "polatis_rigs:PolatisRestconfRig",
    },
)
