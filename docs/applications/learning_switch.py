"""A learning switch, written like Ryu's applications; runs as ringlight up FILE --app THIS.

Where a packet comes from is where packets to its sender go. `GET /learning/{dpid}` says what was learned.
"""

import json

from ryu.app.wsgi import ControllerBase, Response, WSGIApplication, route
from ryu.base import app_manager
from ryu.controller import ofp_event
from ryu.controller.handler import CONFIG_DISPATCHER, DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from ryu.lib.packet import ether_types, ethernet, packet
from ryu.ofproto import ofproto_v1_3

#: A flow that no packet has used for so long goes, seconds: what it says may have become wrong.
IDLE_S = 10


class LearningSwitch(app_manager.RyuApp):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    _CONTEXTS = {"wsgi": WSGIApplication}

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        #: Port by address by switch.
        self.port_of = {}
        self.port_events = []
        kwargs["wsgi"].register(LearningRest, {"app": self})

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def switch_features_handler(self, ev):
        datapath = ev.msg.datapath
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        # What it has learned before is of another time.
        self.port_of[datapath.id] = {}
        datapath.send_msg(
            parser.OFPFlowMod(
                datapath=datapath,
                command=ofproto.OFPFC_DELETE,
                out_port=ofproto.OFPP_ANY,
                out_group=ofproto.OFPG_ANY,
            )
        )
        to_us = [parser.OFPActionOutput(ofproto.OFPP_CONTROLLER, ofproto.OFPCML_NO_BUFFER)]
        self.add_flow(datapath, 0, parser.OFPMatch(), to_us)

    @set_ev_cls(ofp_event.EventOFPStateChange, DEAD_DISPATCHER)
    def gone_handler(self, ev):
        self.port_of.pop(ev.datapath.id, None)

    def add_flow(self, datapath, priority, match, actions, idle_timeout=0):
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        instructions = [parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions)]
        datapath.send_msg(
            parser.OFPFlowMod(
                datapath=datapath,
                priority=priority,
                match=match,
                instructions=instructions,
                idle_timeout=idle_timeout,
            )
        )

    @set_ev_cls(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)
    def port_status_handler(self, ev):
        port = ev.msg.desc
        reason = {0: "added", 1: "removed", 2: "changed"}[ev.msg.reason]
        self.port_events.append((ev.msg.datapath.id, port.port_no, reason))
        self.logger.info("switch %s: port %s %s", ev.msg.datapath.id, port.port_no, reason)

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_in_handler(self, ev):
        msg = ev.msg
        datapath, in_port = msg.datapath, msg.match["in_port"]
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        frame = packet.Packet(msg.data).get_protocols(ethernet.ethernet)[0]
        if frame.ethertype in (ether_types.ETH_TYPE_LLDP, ether_types.ETH_TYPE_IPV6):
            return
        ports = self.port_of.setdefault(datapath.id, {})
        if ports.get(frame.src, in_port) != in_port:
            self.forget(datapath, frame.src)
        ports[frame.src] = in_port
        out_port = ports.get(frame.dst, ofproto.OFPP_FLOOD)
        actions = [parser.OFPActionOutput(out_port)]
        if out_port != ofproto.OFPP_FLOOD:
            match = parser.OFPMatch(in_port=in_port, eth_src=frame.src, eth_dst=frame.dst)
            self.add_flow(datapath, 1, match, actions, IDLE_S)
        datapath.send_msg(
            parser.OFPPacketOut(
                datapath=datapath,
                buffer_id=ofproto.OFP_NO_BUFFER,
                in_port=in_port,
                actions=actions,
                data=msg.data,
            )
        )

    def forget(self, datapath, mac):
        """A host is now elsewhere: packets to it and from it are looked at again."""
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        for match in (parser.OFPMatch(eth_dst=mac), parser.OFPMatch(eth_src=mac)):
            datapath.send_msg(
                parser.OFPFlowMod(
                    datapath=datapath,
                    command=ofproto.OFPFC_DELETE,
                    out_port=ofproto.OFPP_ANY,
                    out_group=ofproto.OFPG_ANY,
                    match=match,
                )
            )


class LearningRest(ControllerBase):
    def __init__(self, req, link, data, **config):
        super().__init__(req, link, data, **config)
        self.app = data["app"]

    @route("learning", "/learning/{dpid}", methods=["GET"], requirements={"dpid": r"\d+"})
    def learned(self, req, dpid, **kwargs):
        dpid = int(dpid)
        if dpid not in self.app.port_of:
            return Response(status=404, content_type="application/json", text='{"detail": "no such switch"}')
        found = {
            "learned": self.app.port_of[dpid],
            "port_events": [list(event[1:]) for event in self.app.port_events if event[0] == dpid],
        }
        return Response(content_type="application/json", text=json.dumps(found))
