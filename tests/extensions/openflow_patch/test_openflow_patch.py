"""A cross-connect as a flow, and back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.controller.openflow.messages import FlowEntry
from ringlight.controller.optical.errors import ProtocolError
from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.openflow_patch.driver import (
    IN_PORT,
    OWNER,
    PRIORITY,
    cross_connect_of,
    cross_connects_of,
    flow_of,
    is_drop,
)
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState

SIZE = 16


def entry(
    match: dict[str, int | str],
    out_ports: tuple[int, ...],
    priority: int = PRIORITY,
    table_id: int = 0,
) -> FlowEntry:
    return FlowEntry(priority, match, out_ports, OWNER, table_id, 0, 0, 0.0)


@given(st.integers(1, SIZE), st.integers(1, SIZE))
def test_there_and_back(ingress: int, faceplate: int) -> None:
    wanted = CrossConnect(ingress, SIZE + faceplate)
    flow = flow_of(wanted, SIZE)
    assert flow.command == "add"
    assert flow.out_ports == (IN_PORT if ingress == faceplate else faceplate,)
    assert cross_connect_of(entry(dict(flow.match), flow.out_ports), SIZE) == wanted
    gone = flow_of(wanted, SIZE, "delete_strict")
    assert (gone.command, gone.match, gone.priority) == (
        "delete_strict",
        flow.match,
        flow.priority,
    )


def test_what_the_drop_flow_hides_is_no_cross_connect() -> None:
    assert cross_connect_of(entry({}, (), priority=1), SIZE) is None
    assert cross_connect_of(entry({}, (0xFFFFFFFA,), priority=0), SIZE) is None
    assert is_drop(entry({}, (), priority=1))
    assert not is_drop(entry({}, (3,), priority=1))


@pytest.mark.parametrize(
    "flow",
    [
        entry({}, (2,)),
        entry({"in_port": 1}, ()),
        entry({"in_port": 1}, (2, 3)),
        entry({"in_port": 1, "eth_type": 2048}, (2,)),
        entry({"in_port": 1}, (2,), priority=101),
        entry({"in_port": 1}, (2,), priority=1),
        entry({"in_port": 1}, (2,), table_id=1),
    ],
)
def test_any_other_flow_is_an_error_that_shows_it(flow: FlowEntry) -> None:
    with pytest.raises(ProtocolError, match="no cross-connect"):
        cross_connect_of(flow, SIZE)


def test_it_needs_a_plane() -> None:
    with pytest.raises(
        ValueError, match="ocs0: the driver openflow needs an OpenFlow plane"
    ):
        make_driver("ocs0", {"driver": "openflow", "dpid": 257}, SIZE)
    with pytest.raises(ValueError, match="lacks 'dpid'"):
        make_driver("ocs0", {"driver": "openflow"}, SIZE, object())


def test_of_two_flows_into_one_port_the_older_stands() -> None:
    older, newer = entry({"in_port": 2}, (4,)), entry({"in_port": 5}, (4,))
    states, foreign = cross_connects_of(
        [newer, replace(older, duration_s=9.0, cookie=7)], 8
    )
    assert states == {
        CrossConnect(2, 12): CrossConnectState.CONNECTED,
        CrossConnect(5, 12): CrossConnectState.INVALID,
    }
    assert foreign == {CrossConnect(2, 12)}
