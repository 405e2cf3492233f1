"""Optical switches of Calient: TL1 and REST."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="calient",
    requires=("http", "tl1"),
    drivers={"calient-tl1": "products:TL1", "calient-rest": "products:REST"},
    protocols={"calient-tl1": "emulation.tl1:PROTOCOL", "calient-rest": "emulation.rest:PROTOCOL"},
    profiles={"calient-s320": "products:CALIENT_S320"},
    rigs={"calient-tl1": "rigs:CalientTl1Rig", "calient-rest": "rigs:CalientRestRig"},
)
