"""The first switch of most OpenFlow tutorials, like Ryu's simple_switch_13: it follows no host.

It learns at which port an address is when a packet comes to it, and then writes a flow that stays for ever. A
packet that matches a flow never comes to it again, so it does not see that its host has moved. To have it
follow the light, say `moved_flows: delete` in the fabric.
"""

from ryu.base import app_manager
from ryu.controller import ofp_event
from ryu.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from ryu.lib.packet import ether_types, ethernet, packet
from ryu.ofproto import ofproto_v1_3


class SimpleSwitch(app_manager.RyuApp):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        #: Port by switch and address.
        self.port_of = {}

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def switch_features_handler(self, ev):
        datapath = ev.msg.datapath
        ofproto = datapath.ofproto
        to_us = datapath.ofproto_parser.OFPActionOutput(ofproto.OFPP_CONTROLLER, ofproto.OFPCML_NO_BUFFER)
        self.add_flow(datapath, 0, datapath.ofproto_parser.OFPMatch(), [to_us])

    def add_flow(self, datapath, priority, match, actions):
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        apply = parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions)
        datapath.send_msg(
            parser.OFPFlowMod(datapath=datapath, priority=priority, match=match, instructions=[apply])
        )

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_in_handler(self, ev):
        msg = ev.msg
        datapath, in_port = msg.datapath, msg.match["in_port"]
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        frame = packet.Packet(msg.data).get_protocols(ethernet.ethernet)[0]
        if frame.ethertype == ether_types.ETH_TYPE_LLDP:
            return
        self.port_of[datapath.id, frame.src] = in_port
        out_port = self.port_of.get((datapath.id, frame.dst), ofproto.OFPP_FLOOD)
        actions = [parser.OFPActionOutput(out_port)]
        if out_port != ofproto.OFPP_FLOOD:
            match = parser.OFPMatch(in_port=in_port, eth_src=frame.src, eth_dst=frame.dst)
            self.add_flow(datapath, 1, match, actions)
        datapath.send_msg(
            parser.OFPPacketOut(
                datapath=datapath,
                buffer_id=ofproto.OFP_NO_BUFFER,
                in_port=in_port,
                actions=actions,
                data=msg.data,
            )
        )
