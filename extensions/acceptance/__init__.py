"""Acceptance of an optical switch: checks of its driver and of itself, and measurements.

A switch under test is a :class:`~testbed.rigs.rig.Rig`; a check (``checks/``) is a function of a rig and an
open driver, and asks the rig for what else it needs. What a rig cannot do is reported, and the check skipped.
"""

from ringlight.fabric.extension import Extension

EXTENSION = Extension(name="acceptance", commands="conformance:register")
