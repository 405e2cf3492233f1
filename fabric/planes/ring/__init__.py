"""A ring of wavelengths, whose light is set between the steps of a collective (Dai et al., WRHT)."""
