"""The kernel's networking: what needs no root."""

from __future__ import annotations

import inspect

from ringlight.testbed.emulation import netlink


def test_who_waits_for_a_thread_waits_longer_than_the_thread_does_for_tc() -> None:
    """With 256 workers starting beside other work, one was given up after 10 s though tc has 30."""
    for waits in (netlink.in_thread, netlink.in_namespace):
        assert inspect.signature(waits).parameters["timeout_s"].default > netlink.TC_S + 1
