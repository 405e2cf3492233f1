"""Records of a run with rings of wavelengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlight.experiments.record.light_records import StepSetUps


class RingSetUps(StepSetUps, event="ring"):
    """A ring of wavelengths as the controller shows it after a run, and each change of its circuits:
    ``t``, ``step``, ``total_s`` and ``write_s``."""

    ring: Mapping[str, Any]
