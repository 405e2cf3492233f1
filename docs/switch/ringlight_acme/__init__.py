"""The optical circuit switches of Acme: an example of a driver of one's own."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="acme",
    drivers={"acme": "product:DRIVER"},
    profiles={"acme-p": "product:PROFILE"},
)
