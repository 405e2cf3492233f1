"""Optical switches of Polatis (HUBER+SUHNER): TL1, RESTCONF, NETCONF, and the products' SCPI."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="polatis",
    requires=("http", "tl1"),
    drivers={
        "polatis-scpi": "products:POLATIS_SCPI",
        "polatis-tl1": "products:TL1",
        "polatis-netconf": "products:NETCONF",
        "polatis-restconf": "products:RESTCONF",
    },
    protocols={
        "polatis-tl1": "emulation.tl1:PROTOCOL",
        "polatis-restconf": "emulation.restconf:PROTOCOL",
    },
    profiles={"polatis-7000": "products:POLATIS_7000", "polatis-6000": "products:POLATIS_6000"},
    rigs={"polatis-tl1": "rigs:PolatisTl1Rig", "polatis-restconf": "rigs:PolatisRestconfRig"},
)
