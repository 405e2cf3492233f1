"""Interconnects that are described as wholes rather than port by port."""
