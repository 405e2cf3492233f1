"""Handlers of OpenFlow messages: os-ken's handshake, and delivery of replies to the waiting request."""

from __future__ import annotations

import functools
import logging
import struct
from collections.abc import Callable
from typing import Any

from os_ken.controller import handler, ofp_event
from os_ken.controller.handler import (
    CONFIG_DISPATCHER,
    HANDSHAKE_DISPATCHER,
    MAIN_DISPATCHER,
    set_ev_handler,
)
from os_ken.controller.ofp_handler import OFPHandler
from os_ken.ofproto import ofproto_common, ofproto_protocol
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser

from ringlight.controller.openflow.errors import Reason

log = logging.getLogger(__name__)

_REASONS: dict[tuple[int, int], Reason] = {
    (ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_BAD_PORT): "absent",
    (ofp.OFPET_GROUP_MOD_FAILED, ofp.OFPGMFC_UNKNOWN_GROUP): "absent",
    (ofp.OFPET_METER_MOD_FAILED, ofp.OFPMMFC_UNKNOWN_METER): "absent",
    (ofp.OFPET_PORT_MOD_FAILED, ofp.OFPPMFC_BAD_PORT): "absent",
    (ofp.OFPET_QUEUE_OP_FAILED, ofp.OFPQOFC_BAD_PORT): "absent",
    (ofp.OFPET_QUEUE_OP_FAILED, ofp.OFPQOFC_BAD_QUEUE): "absent",
    (ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_BAD_TYPE): "unsupported",
    (ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_BAD_MULTIPART): "unsupported",
}
#: Open vSwitch's answer to an action, and to a question about the counters of a port, where the port's number
#: is larger than any that it has; and the type of a question in the header of what was refused.
_NO_PORT = (ofp.OFPET_BAD_ACTION, ofp.OFPBAC_BAD_OUT_PORT)
_QUESTION = bytes([ofp.OFPT_MULTIPART_REQUEST])
#: Experimenter and type of the messages of a flow monitor.
MONITOR = (ofproto_common.ONF_EXPERIMENTER_ID, ofp.ONFMP_FLOW_MONITOR)


class _TableFeatures(parser.OFPTableFeaturesStats):  # type: ignore[misc]
    """A table of a table features reply, read with a memory.

    Open vSwitch describes 254 tables in 1.2 MB, all alike but for the tables that may follow. os-ken takes
    seconds for that, on the thread that every other reply of the switch waits for.
    """

    @classmethod
    def parser(cls, buf: Any, offset: int) -> _TableFeatures:
        table = cls()
        table.length, table.table_id, name, *rest = struct.unpack_from(
            ofp.OFP_TABLE_FEATURES_PACK_STR, buf, offset
        )
        table.metadata_match, table.metadata_write, table.config, table.max_entries = (
            rest
        )
        table.name = name.rstrip(b"\0")
        end = offset + table.length
        position = offset + ofp.OFP_TABLE_FEATURES_SIZE
        table.properties = []
        while position < end:
            _, length = struct.unpack_from("!HH", buf, position)
            padded = (max(length, 4) + 7) // 8 * 8
            table.properties.append(
                _table_property(bytes(buf[position : position + padded]))
            )
            position += padded
        return table


@functools.lru_cache(maxsize=1024)
def _table_property(data: bytes) -> Any:
    return parser.OFPTableFeatureProp.parse(data)[0]


parser.OFPTableFeaturesStatsReply.cls_stats_body_cls = _TableFeatures


class _FlowStats(parser.OFPFlowStats):  # type: ignore[misc]
    """A flow of a flow reply, read with a memory, as tables are read again and again.

    ``wire_match`` and ``wire_instructions`` are as the switch wrote them.
    """

    @classmethod
    def parser(cls, buf: Any, offset: int) -> _FlowStats:
        head = struct.unpack_from(ofp.OFP_FLOW_STATS_0_PACK_STR, buf, offset)
        (
            length,
            table,
            seconds,
            nanoseconds,
            priority,
            idle,
            hard,
            flags,
            cookie,
            packets,
            size,
        ) = head
        position = offset + ofp.OFP_FLOW_STATS_0_SIZE
        middle = (
            position + (struct.unpack_from("!H", buf, position + 2)[0] + 7) // 8 * 8
        )
        match, instructions = (
            bytes(buf[position:middle]),
            bytes(buf[middle : offset + length]),
        )
        flow = cls(
            *(
                table,
                seconds,
                nanoseconds,
                priority,
                idle,
                hard,
                flags,
                cookie,
                packets,
                size,
            ),
            *(flow_match(match), flow_instructions(instructions), length),
        )
        flow.wire_match, flow.wire_instructions = match, instructions
        return flow


@functools.lru_cache(maxsize=8192)
def flow_match(data: bytes) -> Any:
    """Return a match as os-ken's object, which must not be changed."""
    return parser.OFPMatch.parser(data, 0)


@functools.lru_cache(maxsize=8192)
def flow_instructions(data: bytes) -> Any:
    """Return a flow's instructions as a list of os-ken's objects, which must not be changed."""
    instructions, position = [], 0
    while position < len(data):
        instructions.append(parser.OFPInstruction.parser(data, position))
        position += instructions[-1].len
    return instructions


parser.OFPFlowStatsReply.cls_stats_body_cls = _FlowStats


class Handlers(OFPHandler):  # type: ignore[misc]
    """Message handlers that run on each connection's receive thread, without an event queue and a thread of
    their own.
    """

    def __init__(
        self, on_port: Callable[[Any, int, Any], None], on_flows: Callable[[Any], None]
    ) -> None:
        super().__init__()
        ofproto_protocol.set_app_supported_versions([ofp.OFP_VERSION])
        self._on_port, self._on_flows = on_port, on_flows
        handler.register_instance(self)

    @set_ev_handler(  # type: ignore[untyped-decorator]
        [
            ofp_event.EventOFPAggregateStatsReply,
            ofp_event.EventOFPDescStatsReply,
            ofp_event.EventOFPExperimenterStatsReply,
            ofp_event.EventOFPFlowStatsReply,
            ofp_event.EventOFPGroupDescStatsReply,
            ofp_event.EventOFPGroupFeaturesStatsReply,
            ofp_event.EventOFPGroupStatsReply,
            ofp_event.EventOFPMeterConfigStatsReply,
            ofp_event.EventOFPMeterFeaturesStatsReply,
            ofp_event.EventOFPMeterStatsReply,
            ofp_event.EventOFPPortDescStatsReply,
            ofp_event.EventOFPPortStatsReply,
            ofp_event.EventOFPQueueStatsReply,
            ofp_event.EventOFPTableFeaturesStatsReply,
            ofp_event.EventOFPTableStatsReply,
        ],
        MAIN_DISPATCHER,
    )
    def on_statistics(self, event: Any) -> None:
        msg = event.msg
        msg.datapath.answer(
            msg, more=bool(msg.flags & msg.datapath.ofproto.OFPMPF_REPLY_MORE)
        )

    @set_ev_handler(  # type: ignore[untyped-decorator]
        [
            ofp_event.EventOFPBarrierReply,
            ofp_event.EventOFPQueueGetConfigReply,
            ofp_event.EventOFPRoleReply,
        ],
        MAIN_DISPATCHER,
    )
    def on_reply(self, event: Any) -> None:
        event.msg.datapath.answer(event.msg)

    @set_ev_handler(
        ofp_event.EventOFPErrorMsg,
        [HANDSHAKE_DISPATCHER, CONFIG_DISPATCHER, MAIN_DISPATCHER],
    )  # type: ignore[untyped-decorator]
    def on_error(self, event: Any) -> None:
        msg = event.msg
        ofproto = msg.datapath.ofproto
        text = ofproto.ofp_error_code_to_str(msg.type, msg.code)
        log.warning(
            "switch %s: OpenFlow error %s (xid %#x)", msg.datapath.id, text, msg.xid
        )
        reason = _REASONS.get((msg.type, msg.code), "bad")
        if (msg.type, msg.code) == _NO_PORT and bytes(msg.data[1:2]) == _QUESTION:
            reason = "absent"
        msg.datapath.answer_error(msg.xid, text, reason)

    @set_ev_handler(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)  # type: ignore[untyped-decorator]
    def on_port_status(self, event: Any) -> None:
        self._on_port(event.msg.datapath, event.msg.reason, event.msg.desc)

    def on_flow_monitor(self, switch: Any, message: bytes | bytearray) -> None:
        """Process an unsolicited message of a flow monitor.

        A message arrives for each flow that the controller writes, and os-ken would take four times as long
        to read it.
        """
        if len(message) < ofp.OFP_MULTIPART_REPLY_SIZE + 8:
            return
        kind, experimenter, event = struct.unpack_from(
            "!H6xII", message, ofproto_common.OFP_HEADER_SIZE
        )
        of_monitor = kind == ofp.OFPMP_EXPERIMENTER and (experimenter, event) == MONITOR
        if of_monitor and _tells_of_others(message[ofp.OFP_MULTIPART_REPLY_SIZE + 8 :]):
            self._on_flows(switch)


def _tells_of_others(updates: bytes | bytearray) -> bool:
    """Return whether a flow monitor's updates include a change by another client.

    Changes by the controller itself are given only as a transaction number.
    """
    position = 0
    while position + 4 <= len(updates):
        length, event = struct.unpack_from("!HH", updates, position)
        if event != ofp.ONFFME_ABBREV:
            return True
        position += max(length, 4)
    return False
