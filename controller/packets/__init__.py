"""Packet switches: their attachments, their rules and their counters."""
