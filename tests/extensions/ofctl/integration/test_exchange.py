"""Requests that os-ken's library makes, and deadlines."""

from __future__ import annotations

import pytest

from ringlight.controller.openflow.errors import SwitchTimeoutError
from ringlight.controller.openflow.plane import OpenFlowPlane
from ringlight.extensions.ofctl.exchange import Ofctl
from tests.integration.test_openflow_plane import DPID
from tests.integration.test_openflow_plane import plane as plane
from tests.integration.test_openflow_plane import site as site

pytestmark = pytest.mark.root


def test_a_switch_that_does_not_answer_in_time_is_told(plane: OpenFlowPlane) -> None:
    ofctl = Ofctl(plane)
    for question in ("table", "queueconfig", "groupfeatures", "meter", "role"):
        with pytest.raises(SwitchTimeoutError):
            ofctl.read(DPID, question, timeout_s=0.0)
    with pytest.raises(SwitchTimeoutError):
        ofctl.write(DPID, "group", {"group_id": 1}, "delete", timeout_s=0.0)
