"""What a switch says over gNMI that is no text."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ringlight.controller.optical.errors import ProtocolError
from ringlight.extensions.gnmi.gnmi_client import updates_of


def test_half_of_a_character_is_refused() -> None:
    value = SimpleNamespace(
        WhichOneof=lambda _: "json_ietf_val", json_ietf_val=rb'["a", {"b": "\ud800"}]'
    )
    path = SimpleNamespace(elem=[])
    note = SimpleNamespace(prefix=path, update=[SimpleNamespace(path=path, val=value)])
    with pytest.raises(ProtocolError):
        list(updates_of(SimpleNamespace(notification=[note])))
