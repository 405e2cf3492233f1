"""Sections of the report about divided light and phases."""
