"""A grid of wavelength-selective switches, whose light is asked for (Li et al., ODDL)."""
