"""The handlers of OpenFlow messages: os-ken's handshake, and replies handed to who asked."""

from __future__ import annotations

import logging
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
from os_ken.ofproto import ofproto_protocol, ofproto_v1_3

log = logging.getLogger(__name__)


class Handlers(OFPHandler):  # type: ignore[misc]
    """Runs on each connection's receive thread; no event queue and no thread of its own."""

    def __init__(self, on_port: Callable[[Any, int, Any], None]) -> None:
        super().__init__()
        ofproto_protocol.set_app_supported_versions([ofproto_v1_3.OFP_VERSION])
        self._on_port = on_port
        handler.register_instance(self)

    @set_ev_handler(  # type: ignore[untyped-decorator]
        [
            ofp_event.EventOFPFlowStatsReply,
            ofp_event.EventOFPPortStatsReply,
            ofp_event.EventOFPPortDescStatsReply,
            ofp_event.EventOFPDescStatsReply,
        ],
        MAIN_DISPATCHER,
    )
    def on_statistics(self, event: Any) -> None:
        msg = event.msg
        msg.datapath.answer(msg, more=bool(msg.flags & msg.datapath.ofproto.OFPMPF_REPLY_MORE))

    @set_ev_handler(ofp_event.EventOFPBarrierReply, MAIN_DISPATCHER)  # type: ignore[untyped-decorator]
    def on_barrier(self, event: Any) -> None:
        event.msg.datapath.answer(event.msg)

    @set_ev_handler(ofp_event.EventOFPErrorMsg, [HANDSHAKE_DISPATCHER, CONFIG_DISPATCHER, MAIN_DISPATCHER])  # type: ignore[untyped-decorator]
    def on_error(self, event: Any) -> None:
        msg = event.msg
        ofproto = msg.datapath.ofproto
        text = ofproto.ofp_error_code_to_str(msg.type, msg.code)
        log.warning("switch %s: OpenFlow error %s (xid %#x)", msg.datapath.id, text, msg.xid)
        msg.datapath.answer_error(msg.xid, text)

    @set_ev_handler(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)  # type: ignore[untyped-decorator]
    def on_port_status(self, event: Any) -> None:
        self._on_port(event.msg.datapath, event.msg.reason, event.msg.desc)
