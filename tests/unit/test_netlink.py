"""The kernel's networking: what needs no root."""

from __future__ import annotations

import inspect

import pytest

from ringlight.testbed.emulation.kernel import namespaces, shaping


def test_who_waits_for_a_thread_waits_longer_than_the_thread_does_for_tc() -> None:
    """With 256 workers starting beside other work, one was given up after 10 s though tc has 30."""
    for waits in (namespaces.in_thread, namespaces.in_namespace):
        assert (
            inspect.signature(waits).parameters["timeout_s"].default > shaping.TC_S + 1
        )


def test_no_peer_s_queue_goes_before_another_s(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(shaping, "_batch", lambda made, _: lines.extend(made))
    shaping.shape_peers("eth0", 1e6, 2, 2)
    classes = [line for line in lines if line.startswith("class ")]
    assert len(classes) == 4
    assert not any("prio" in line for line in classes)
