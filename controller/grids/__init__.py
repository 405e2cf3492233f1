"""Grids: the arbiter of their light, and their O-NICs."""
