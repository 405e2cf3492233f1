"""A learning switch for os-ken's own manager, as small as one can be: it forwards each packet by itself."""

from os_ken.base import app_manager
from os_ken.controller import ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.lib.packet import ethernet, packet
from os_ken.ofproto import ofproto_v1_3


class OtherSwitch(app_manager.OSKenApp):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.port_of = {}

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def features(self, ev):
        datapath = ev.msg.datapath
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        to_us = [parser.OFPActionOutput(ofproto.OFPP_CONTROLLER, ofproto.OFPCML_NO_BUFFER)]
        apply = [parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, to_us)]
        datapath.send_msg(parser.OFPFlowMod(datapath, priority=0, instructions=apply))

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_in(self, ev):
        msg = ev.msg
        datapath, in_port = msg.datapath, msg.match["in_port"]
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        frame = packet.Packet(msg.data).get_protocols(ethernet.ethernet)[0]
        self.port_of[datapath.id, frame.src] = in_port
        port = self.port_of.get((datapath.id, frame.dst), ofproto.OFPP_FLOOD)
        actions = [parser.OFPActionOutput(port)]
        out = {"buffer_id": ofproto.OFP_NO_BUFFER, "in_port": in_port, "actions": actions, "data": msg.data}
        datapath.send_msg(parser.OFPPacketOut(datapath, **out))
