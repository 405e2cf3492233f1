"""Interconnects and divided light in virtual time."""
