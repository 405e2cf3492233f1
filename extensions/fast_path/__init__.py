"""Carries in the kernel what the flow tables of Open vSwitch's bridges say, beside Open vSwitch.

``openflow.py`` hears from Open vSwitch what its tables are, ``table.py`` makes of a table what the kernel's
programs (``fastpath.c``) look up, ``datapath.py`` has their maps, and ``carrier.py`` keeps the two equal.
``carried.py`` adds what they carry to the switches' own counters, for the controller.
"""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    name="fast_path",
    devices={"fast_path": "device:FAST_PATH"},
    controller=("service:add_carried",),
)
