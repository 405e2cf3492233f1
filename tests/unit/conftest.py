"""Shared by the unit tests."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
