"""A ring of nodes with wavelengths in both directions: its parts, and its light."""
