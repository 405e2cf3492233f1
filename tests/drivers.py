"""What tests do with a driver of an optical switch."""

from ringlight.testbed.rigs.changing import converge

__all__ = ["converge"]
