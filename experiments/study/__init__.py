"""A study of all-reduces on a ring of wavelengths: simulated only, with a language of its own for now."""
