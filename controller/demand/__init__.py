"""Interconnects whose light is divided among pairs of GPUs by what these have to send."""
