"""The simulation: run plans in virtual time, on the same fabrics, schedules, planner and agents' protocol."""
