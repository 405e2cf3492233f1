"""Figures of divided light and of phases."""
