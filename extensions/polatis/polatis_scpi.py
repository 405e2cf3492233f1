"""SCPI of Polatis' switches: the core's driver, which was written for them."""

from __future__ import annotations

from ringlight.controller.optical.scpi import ScpiDriver as ScpiDriver
