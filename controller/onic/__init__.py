"""The control unit of an O-NIC: protocol core (no I/O), wire format and the agent process."""
