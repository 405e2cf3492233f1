"""The classic ``ofctl_rest`` shapes, made by os-ken's own library from our deadline-bound requests.

The library waits for replies without end on native threads, so it is given a stand-in for the switch
whose ``send_msg`` does the whole exchange at once. It leaves out what it does not know (a match field, a
kind of action), so what it is handed is looked at first, part by part.
"""

from __future__ import annotations

import copy
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from os_ken.exception import OSKenException
from os_ken.lib import ofctl_utils, ofctl_v1_3
from os_ken.ofproto import ofproto_v1_3, ofproto_v1_3_parser

from ringlight.controller.openflow.errors import (
    NotKeptError,
    SwitchRefusedError,
    UnreadableError,
)
from ringlight.controller.openflow.plane import OpenFlowPlane
from ringlight.controller.openflow.switch import Switch

#: Exceptions that the library raises on an entry that it cannot read.
_UNREADABLE = (
    ofctl_utils.netaddr.AddrFormatError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSKenException,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
#: The exceptions whose text is for people.
_TELLING = (ofctl_utils.netaddr.AddrFormatError, ValueError)

_READS: dict[str, Callable[..., Any]] = {
    "aggregateflow": ofctl_v1_3.get_aggregate_flow_stats,
    "desc": ofctl_v1_3.get_desc_stats,
    "flow": ofctl_v1_3.get_flow_stats,
    "group": ofctl_v1_3.get_group_stats,
    "groupdesc": ofctl_v1_3.get_group_desc,
    "groupfeatures": ofctl_v1_3.get_group_features,
    "meter": ofctl_v1_3.get_meter_stats,
    "meterconfig": ofctl_v1_3.get_meter_config,
    "meterfeatures": ofctl_v1_3.get_meter_features,
    "port": ofctl_v1_3.get_port_stats,
    "portdesc": ofctl_v1_3.get_port_desc,
    "queue": ofctl_v1_3.get_queue_stats,
    "queueconfig": ofctl_v1_3.get_queue_config,
    "role": ofctl_v1_3.get_role,
    "table": ofctl_v1_3.get_table_stats,
    "tablefeatures": ofctl_v1_3.get_table_features,
}
_COMMANDS = {
    "flow": {
        "add": ofproto_v1_3.OFPFC_ADD,
        "modify": ofproto_v1_3.OFPFC_MODIFY,
        "modify_strict": ofproto_v1_3.OFPFC_MODIFY_STRICT,
        "delete": ofproto_v1_3.OFPFC_DELETE,
        "delete_strict": ofproto_v1_3.OFPFC_DELETE_STRICT,
    },
    "group": {
        "add": ofproto_v1_3.OFPGC_ADD,
        "modify": ofproto_v1_3.OFPGC_MODIFY,
        "delete": ofproto_v1_3.OFPGC_DELETE,
    },
    "meter": {
        "add": ofproto_v1_3.OFPMC_ADD,
        "modify": ofproto_v1_3.OFPMC_MODIFY,
        "delete": ofproto_v1_3.OFPMC_DELETE,
    },
}
_WRITES: dict[str, Callable[..., Any]] = {
    "flow": ofctl_v1_3.mod_flow_entry,
    "group": ofctl_v1_3.mod_group_entry,
    "meter": ofctl_v1_3.mod_meter_entry,
}


#: Answers with counters of what may have been carried past the switch.
_COUNTED = (
    ofproto_v1_3_parser.OFPFlowStatsReply,
    ofproto_v1_3_parser.OFPGroupStatsReply,
    ofproto_v1_3_parser.OFPPortStatsReply,
    ofproto_v1_3_parser.OFPTableStatsReply,
)
_Amend = Callable[[int, Sequence[Any]], None]


class _Exchange:
    """Substitute for the datapath object that the library expects."""

    ofproto = ofproto_v1_3
    ofproto_parser = ofproto_v1_3_parser

    def __init__(
        self,
        switch: Switch,
        timeout_s: float = 5.0,
        amend: _Amend = lambda dpid, replies: None,
    ) -> None:
        self.id = switch.id
        self._amend = amend
        self.waiters: dict[int, dict[int, Any]] = {}
        self._switch = switch
        self._deadline = time.monotonic() + timeout_s

    def set_xid(self, msg: Any) -> int:
        return self._switch.set_xid(msg)

    def send_msg(self, msg: Any) -> None:
        left_s = max(0.0, self._deadline - time.monotonic())
        waiter = self.waiters.get(self.id, {}).pop(msg.xid, None)
        # The message was built for this stand-in; its buffer is made again for the real switch.
        msg.xid = None
        if waiter is None:
            barrier = ofproto_v1_3_parser.OFPBarrierRequest(self._switch)
            self._switch.transact([msg, barrier], left_s)
            return
        arrived, replies = waiter
        replies.extend(self._switch.transact([msg], left_s))
        if replies and isinstance(replies[0], _COUNTED):
            self._amend(self.id, replies)
        arrived.set()


class Ofctl:
    """Reads and writes switches of a plane. Methods raise the errors of ``controller.openflow.errors``.

    ``timeout_s`` (default 5 s) bounds the whole call, regardless of the number of requests to the switch.
    """

    def __init__(self, plane: OpenFlowPlane) -> None:
        self._plane = plane

    def read(
        self, dpid: int, what: str, *, timeout_s: float = 5.0, **narrowed: Any
    ) -> dict[str, Any]:
        """Query a switch. Return its reply as ``{"<dpid>": …}``.

        ``what``: the word in ``/stats/<what>/<dpid>``. ``narrowed``: ``flow`` (a filter), ``port``,
        ``queue_id``, ``group_id`` or ``meter_id``; None for all.
        """
        exchange = _Exchange(self._plane.switch(dpid), timeout_s, self._plane.amend)
        if (flow_filter := narrowed.get("flow")) is not None:
            _check_flow(exchange, flow_filter)
            narrowed["flow"] = copy.deepcopy(dict(flow_filter))
        if what == "queueconfig" and narrowed.get("port") is None:
            return _all_queues(exchange)
        # Before OpenFlow 1.5 a switch describes all its ports or groups, never one.
        number = None
        if what in ("portdesc", "groupdesc"):
            key = "port_no" if what == "portdesc" else "group_id"
            number = narrowed.pop("port" if what == "portdesc" else "group_id", None)
        read = (
            _summed
            if what == "aggregateflow" and self._plane.carried is not None
            else _READS[what]
        )
        reply = dict(
            _reading(what, lambda: read(exchange, exchange.waiters, **narrowed))
        )
        if number is not None:
            reply = {
                name: [e for e in entries if str(e[key]) == str(number)]
                for name, entries in reply.items()
            }
        return reply

    def write(
        self,
        dpid: int,
        what: str,
        entry: Mapping[str, Any],
        command: str,
        *,
        timeout_s: float = 5.0,
    ) -> None:
        """Change a flow, group or meter from a classic entry, confirmed by a barrier.

        ``what``: flow, group or meter; ``command``: add, modify, modify_strict, delete or delete_strict (of
        flows), add, modify or delete (of the others). Raises KeyError on another.
        """
        number = _COMMANDS[what][command]
        exchange = _Exchange(self._plane.switch(dpid), timeout_s)
        if what == "flow":
            _check_flow(exchange, entry)
        if what == "group":
            for index, bucket in enumerate(entry.get("buckets") or ()):
                _check_actions(
                    exchange, f"buckets.{index}.actions", bucket.get("actions") or ()
                )
        _reading(
            f"the {what} entry",
            lambda: _WRITES[what](exchange, copy.deepcopy(dict(entry)), number),
        )
        self._plane.settle()

    def clear_flows(self, dpid: int) -> None:
        """Delete every flow of every table."""
        exchange = _Exchange(self._plane.switch(dpid))
        everything = {"table_id": ofproto_v1_3.OFPTT_ALL}
        ofctl_v1_3.mod_flow_entry(exchange, everything, ofproto_v1_3.OFPFC_DELETE)
        self._plane.settle()

    def modify_port(self, dpid: int, entry: Mapping[str, Any]) -> None:
        """Change a port's configuration (``port_no``, ``config``, ``mask``) and read it back."""
        exchange = _Exchange(self._plane.switch(dpid))
        number = _number(entry["port_no"], "OFPP_")
        before = _port(exchange, number)
        mask, config = _number(entry.get("mask", 0)), _number(entry.get("config", 0))
        settings = {
            "hw_addr": before["hw_addr"],
            "advertise": before["advertised"],
            **entry,
        }
        _reading("the port", lambda: ofctl_v1_3.mod_port_behavior(exchange, settings))
        if (after := _port(exchange, number)["config"]) & mask != config & mask:
            raise NotKeptError(
                f"switch {dpid} confirmed the change of port {number}; its config is {after:#x}"
            )

    def set_role(self, dpid: int, role: Any) -> None:
        """Ask for a role (``MASTER``, ``EQUAL`` or ``NOCHANGE``)."""
        exchange = _Exchange(self._plane.switch(dpid))
        _reading("the role", lambda: ofctl_v1_3.set_role(exchange, {"role": role}))

    def experimenter(self, dpid: int, entry: Mapping[str, Any]) -> None:
        """Send an experimenter message; what the switch answers to it but an error is not waited for."""
        exchange = _Exchange(self._plane.switch(dpid))
        _reading(
            "the message", lambda: ofctl_v1_3.send_experimenter(exchange, dict(entry))
        )


def _summed(exchange: _Exchange, waiters: Any, **narrowed: Any) -> dict[str, Any]:
    """Return a switch's reply about aggregated flows, added up from its reply about each flow."""
    (flows,) = ofctl_v1_3.get_flow_stats(
        exchange, waiters, to_user=False, **narrowed
    ).values()
    sums = {
        key: sum(flow[key] for flow in flows) for key in ("packet_count", "byte_count")
    }
    return {str(exchange.id): [{**sums, "flow_count": len(flows)}]}


def _reading(part: str, work: Callable[[], Any], value: Any = None) -> Any:
    """Return the result of ``work``.

    Raises UnreadableError naming the part if the library cannot parse it.
    """
    try:
        return work()
    except _UNREADABLE as error:
        shown = "it" if value is None else _short(value)
        why = f": {_short(error)}" if isinstance(error, _TELLING) else ""
        raise UnreadableError(f"{part}: {shown} cannot be read{why}") from error


def _short(value: Any) -> str:
    text = " ".join(
        (str(value) if isinstance(value, str | Exception) else repr(value)).split()
    )
    return text if len(text) <= 80 else f"{text[:77]}..."


def _check_flow(exchange: _Exchange, entry: Mapping[str, Any]) -> None:
    """Check a flow's match and actions.

    Raises UnreadableError naming the first that the library cannot read.
    """
    match = entry.get("match") or {}
    for key, value in match.items():
        # "tp_src" and "tp_dst" can be read only with the match's protocol, TCP or UDP.
        field = {
            k: match[k]
            for k in ("nw_proto", "ip_proto")
            if k in match and key.startswith("tp_")
        }
        field[key] = value
        fields = _reading(
            f"match.{key}",
            partial(_fields, exchange, field),
            value,
        )
        if not fields:
            raise UnreadableError(f"match.{key} is no match field of OpenFlow 1.3")
        # A number that is too long would be cut to fit.
        parsed = fields[-1]["OXMTlv"]["value"]
        if isinstance(value, int) and parsed not in (
            value,
            value | ofproto_v1_3.OFPVID_PRESENT,
        ):
            raise UnreadableError(f"match.{key}: {_short(value)} does not fit")
    _check_actions(exchange, "actions", entry.get("actions") or ())


def _fields(exchange: _Exchange, match: dict[str, Any]) -> list[dict[str, Any]]:
    made = ofctl_v1_3.to_match(exchange, match)
    made.serialize(bytearray(), 0)
    return list(made.to_jsondict()["OFPMatch"]["oxm_fields"])


def _check_actions(exchange: _Exchange, where: str, actions: Any) -> None:
    for index, action in enumerate(actions):
        made = _reading(
            f"{where}.{index}",
            lambda item=action: ofctl_v1_3.to_actions(exchange, [copy.deepcopy(item)]),  # type: ignore[misc]
            action,
        )
        if not made:
            raise UnreadableError(
                f"{where}.{index}: {_short(action)} is no action of OpenFlow 1.3"
            )
        for instruction in made:
            _reading(
                f"{where}.{index}",
                lambda item=instruction: item.serialize(bytearray(), 0),  # type: ignore[misc]
                action,
            )


def _number(value: Any, prefix: str | None = None) -> int:
    """Return a number written in decimal or as ``0x…``, or with a prefix a reserved name (``LOCAL``).

    Raises UnreadableError.
    """
    try:
        return int(str(value), 0)
    except ValueError:
        name = str(value).upper().removeprefix(prefix or "")
        if prefix is None or not hasattr(ofproto_v1_3, prefix + name):
            raise UnreadableError(f"{_short(value)} is not a number") from None
        return int(getattr(ofproto_v1_3, prefix + name))


def _ports(exchange: _Exchange) -> list[dict[str, Any]]:
    descriptions = ofctl_v1_3.get_port_desc(exchange, exchange.waiters, to_user=False)
    return list(descriptions[exchange.id])


def _port(exchange: _Exchange, number: int) -> dict[str, Any]:
    for port in _ports(exchange):
        if port["port_no"] == number:
            return port
    raise SwitchRefusedError(f"switch {exchange.id} has no port {number}", 0, "absent")


def _all_queues(exchange: _Exchange) -> dict[str, Any]:
    """Return the queues of every port, read one by one: before OpenFlow 1.4 a request
    cannot name "any port".
    """
    configs = [
        config
        for port in _ports(exchange)
        if port["port_no"] <= ofproto_v1_3.OFPP_MAX
        for config in ofctl_v1_3.get_queue_config(
            exchange, exchange.waiters, port["port_no"]
        )[str(exchange.id)]
    ]
    return {str(exchange.id): configs}
