"""Providers of jobs' light, one for each kind of plane that has any."""
