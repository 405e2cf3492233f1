"""Circuits: what should be lit, the change to that, and the switches it is on."""
