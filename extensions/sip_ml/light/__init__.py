"""Providers of divided light: demand, divisions, phases, and the light of jobs."""
