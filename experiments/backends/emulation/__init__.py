"""Experiments on the emulated testbed."""
