"""Simulates run plans in virtual time, with the same schedules, planner and agents' protocol."""
