"""Reach of one node to another by light: a module of its own, since every O-NIC's agent loads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class Reach:
    """One hop: by O-NIC port ``port``, the same at both ends, on channel ``wavelength``."""

    port: int
    wavelength: int
