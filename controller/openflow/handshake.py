"""The handlers of OpenFlow messages: os-ken's handshake, and replies handed to who asked."""

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
from os_ken.ofproto import ofproto_protocol
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
        table.metadata_match, table.metadata_write, table.config, table.max_entries = rest
        table.name = name.rstrip(b"\0")
        end = offset + table.length
        at = offset + ofp.OFP_TABLE_FEATURES_SIZE
        table.properties = []
        while at < end:
            _, length = struct.unpack_from("!HH", buf, at)
            padded = (max(length, 4) + 7) // 8 * 8
            table.properties.append(_table_property(bytes(buf[at : at + padded])))
            at += padded
        return table


@functools.lru_cache(maxsize=1024)
def _table_property(data: bytes) -> Any:
    return parser.OFPTableFeatureProp.parse(data)[0]


parser.OFPTableFeaturesStatsReply.cls_stats_body_cls = _TableFeatures


class Handlers(OFPHandler):  # type: ignore[misc]
    """Runs on each connection's receive thread; no event queue and no thread of its own."""

    def __init__(self, on_port: Callable[[Any, int, Any], None]) -> None:
        super().__init__()
        ofproto_protocol.set_app_supported_versions([ofp.OFP_VERSION])
        self._on_port = on_port
        handler.register_instance(self)

    @set_ev_handler(  # type: ignore[untyped-decorator]
        [
            ofp_event.EventOFPAggregateStatsReply,
            ofp_event.EventOFPDescStatsReply,
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
        msg.datapath.answer(msg, more=bool(msg.flags & msg.datapath.ofproto.OFPMPF_REPLY_MORE))

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

    @set_ev_handler(ofp_event.EventOFPErrorMsg, [HANDSHAKE_DISPATCHER, CONFIG_DISPATCHER, MAIN_DISPATCHER])  # type: ignore[untyped-decorator]
    def on_error(self, event: Any) -> None:
        msg = event.msg
        ofproto = msg.datapath.ofproto
        text = ofproto.ofp_error_code_to_str(msg.type, msg.code)
        log.warning("switch %s: OpenFlow error %s (xid %#x)", msg.datapath.id, text, msg.xid)
        msg.datapath.answer_error(msg.xid, text, _REASONS.get((msg.type, msg.code), "bad"))

    @set_ev_handler(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)  # type: ignore[untyped-decorator]
    def on_port_status(self, event: Any) -> None:
        self._on_port(event.msg.datapath, event.msg.reason, event.msg.desc)
