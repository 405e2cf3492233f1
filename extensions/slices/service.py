"""Slices' part in the controller."""
def add_slices(controller): pass
