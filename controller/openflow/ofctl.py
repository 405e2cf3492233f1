"""The classic ``ofctl_rest`` shapes, made by os-ken's own library from our deadline-bound requests.

The library waits for replies without end on native threads, so it is given a stand-in for the switch
whose ``send_msg`` does the whole exchange at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from os_ken.lib import ofctl_v1_3
from os_ken.ofproto import ofproto_v1_3, ofproto_v1_3_parser

from controller.openflow.switch import Switch

_COMMANDS = {
    "add": ofproto_v1_3.OFPFC_ADD,
    "modify": ofproto_v1_3.OFPFC_MODIFY,
    "modify_strict": ofproto_v1_3.OFPFC_MODIFY_STRICT,
    "delete": ofproto_v1_3.OFPFC_DELETE,
    "delete_strict": ofproto_v1_3.OFPFC_DELETE_STRICT,
}


class _Exchange:
    """What the library takes for a datapath."""

    ofproto = ofproto_v1_3
    ofproto_parser = ofproto_v1_3_parser

    def __init__(self, switch: Switch, timeout_s: float) -> None:
        self.id = switch.id
        self.waiters: dict[int, dict[int, Any]] = {}
        self._switch = switch
        self._timeout_s = timeout_s

    def set_xid(self, msg: Any) -> int:
        return self._switch.set_xid(msg)

    def send_msg(self, msg: Any) -> None:
        waiter = self.waiters.get(self.id, {}).pop(msg.xid, None)
        # The message was built for this stand-in; its buffer is made again for the real switch.
        msg.xid = None
        if waiter is None:
            barrier = ofproto_v1_3_parser.OFPBarrierRequest(self._switch)
            self._switch.transact([msg, barrier], self._timeout_s)
            return
        arrived, replies = waiter
        replies.extend(self._switch.transact([msg], self._timeout_s))
        arrived.set()


class _HasSwitches(Protocol):
    def _switch(self, dpid: int) -> Switch: ...


class OfctlMixin:
    """``ofctl_*`` of the plane. All raise the errors of ``controller.openflow.errors``."""

    def ofctl_desc(self: _HasSwitches, dpid: int, *, timeout_s: float = 5.0) -> dict[str, Any]:
        """``{"1": {"mfr_desc": …, "hw_desc": …, "sw_desc": …, "serial_num": …, "dp_desc": …}}``."""
        exchange = _Exchange(self._switch(dpid), timeout_s)
        return dict(ofctl_v1_3.get_desc_stats(exchange, exchange.waiters))

    def ofctl_flows(
        self: _HasSwitches, dpid: int, wanted: Mapping[str, Any] | None = None, *, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """``{"1": [{"priority", "match", "actions": ["OUTPUT:2"], …}]}``; ``wanted`` narrows it."""
        exchange = _Exchange(self._switch(dpid), timeout_s)
        return dict(ofctl_v1_3.get_flow_stats(exchange, exchange.waiters, dict(wanted or {})))

    def ofctl_port_stats(
        self: _HasSwitches, dpid: int, port: str | None = None, *, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """``{"1": [{"port_no": 1, "rx_packets": …, …}, {"port_no": "LOCAL", …}]}``."""
        exchange = _Exchange(self._switch(dpid), timeout_s)
        return dict(ofctl_v1_3.get_port_stats(exchange, exchange.waiters, port))

    def ofctl_flow_mod(
        self: _HasSwitches, dpid: int, flow: Mapping[str, Any], command: str, *, timeout_s: float = 5.0
    ) -> None:
        """Change flows from a classic flow entry, confirmed by a barrier.

        ``command``: add, modify, modify_strict, delete or delete_strict. Raises KeyError on another one,
        and ValueError, TypeError or KeyError of the library on an entry that it cannot read.
        """
        exchange = _Exchange(self._switch(dpid), timeout_s)
        ofctl_v1_3.mod_flow_entry(exchange, dict(flow), _COMMANDS[command])
