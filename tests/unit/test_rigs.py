"""Rigs: those of the core, and those that extensions bring."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ringlight.fabric import extension as door
from ringlight.fabric.extension import Extension, ExtensionError, InstalledExtension
from ringlight.testbed.rigs import rigs
from ringlight.testbed.rigs.emulated import ScpiRig, WssRig


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    caches = rigs, door.loaders
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def with_extension(patch: pytest.MonkeyPatch, value: str) -> None:
    extension = Extension("torus", rigs={"torus-tl1": value})
    patch.setattr(door, "extensions", lambda: (InstalledExtension(extension, "ringlight.testbed"),))


def test_an_extensions_rig_stands_behind_those_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    with_extension(monkeypatch, "rigs.emulated:WssRig")
    assert list(rigs().items()) == [("scpi", ScpiRig), ("scpi-wss", WssRig), ("torus-tl1", WssRig)]


def test_a_rig_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with_extension(monkeypatch, "rigs.emulated:NoRig")
    with pytest.raises(ExtensionError, match=r"extension torus: rigs[.]emulated:NoRig"):
        rigs()


def test_without_extensions_there_are_those_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "extensions", tuple)
    assert list(rigs()) == ["scpi", "scpi-wss"]
