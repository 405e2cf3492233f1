"""Optical switches of Calient: TL1 and REST."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="calient",
    requires=("http", "tl1"),
    drivers={
        "calient-tl1": "calient_products:TL1",
        "calient-rest": "calient_products:REST",
    },
    profiles={"calient-s320": "calient_products:CALIENT_S320"},
)
