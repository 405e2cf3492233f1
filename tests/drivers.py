"""What tests do with a driver of an optical switch."""

from ringlight.testbed.acceptance.changing import converge

__all__ = ["converge"]
