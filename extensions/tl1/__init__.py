"""The language TL1, which some optical switches speak: grammar, client, session."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(name="tl1")
