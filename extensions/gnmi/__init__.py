"""gNMI, and trees of YANG data, of optical switches: a client, and the emulated switch's side."""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(name="gnmi")
