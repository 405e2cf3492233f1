"""Averagers: units of light that sum what ranks send (Fei et al., OptINC)."""
