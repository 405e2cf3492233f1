"""Optical switches of Calient: TL1 and REST."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="calient",
    requires=("http", "tl1"),
    drivers={
        "calient-tl1": "calient_products:TL1",
        "calient-rest": "calient_products:REST",
    },
    protocols={
        "calient-tl1": "emulation.calient_tl1:PROTOCOL",
        "calient-rest": "emulation.calient_rest:PROTOCOL",
    },
    profiles={"calient-s320": "calient_products:CALIENT_S320"},
    rigs={
        "calient-tl1": "calient_rigs:CalientTl1Rig",
        "calient-rest": "calient_rigs:CalientRestRig",
    },
)
