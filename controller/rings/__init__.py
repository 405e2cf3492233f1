"""Rings: which job has whose light, and the conductor that switches it between steps."""
