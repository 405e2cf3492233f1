"""Packet switches: what is attached to them, their rules and their counters."""
