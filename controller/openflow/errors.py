"""What can go wrong between the controller and a packet switch. Every message is one line."""

from __future__ import annotations


class OpenFlowError(RuntimeError):
    """Base of every error of this package."""


class ListenError(OpenFlowError):
    """The OpenFlow port cannot be opened (taken, or not ours to open)."""


class NotConnectedError(OpenFlowError):
    """The switch is not connected, or its connection ended before it answered."""


class SwitchTimeoutError(OpenFlowError):
    """The switch did not answer in time; what was sent may or may not have taken effect."""


class SwitchRefusedError(OpenFlowError):
    """The switch answered with an OpenFlow error. ``index`` is the message of the batch it refused."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index
