"""Circuits: the intended ones, changes to them, and their switches."""
