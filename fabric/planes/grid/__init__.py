"""A grid of wavelength-selective switches, described as a whole."""
