"""A learning switch of os-ken as a program without Ringlight: python own_manager.py HOST PORT.

Give packet switches `controller: "tcp:HOST:PORT"` in the fabric. It may start before the lab or after it.
"""

import sys

from os_ken import cfg
from os_ken.base import app_manager
from os_ken.controller import ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.lib.packet import ethernet, packet
from os_ken.ofproto import ofproto_v1_3

#: A flow that no packet has used for so long goes, seconds.
IDLE_S = 10


class OwnSwitch(app_manager.OSKenApp):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.port_of = {}

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def features(self, ev):
        datapath = ev.msg.datapath
        ofproto, parser = datapath.ofproto, datapath.ofproto_parser
        self.delete(datapath, parser.OFPMatch())
        self.add(datapath, parser.OFPMatch(), ofproto.OFPP_CONTROLLER, priority=0)

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_in(self, ev):
        msg = ev.msg
        datapath, in_port = msg.datapath, msg.match["in_port"]
        ofproto, parser = datapath.ofproto, datapath.ofproto_parser
        frame = packet.Packet(msg.data).get_protocols(ethernet.ethernet)[0]
        if self.port_of.get((datapath.id, frame.src), in_port) != in_port:
            # It has moved: packets to it and from it are looked at again.
            self.delete(datapath, parser.OFPMatch(eth_dst=frame.src))
            self.delete(datapath, parser.OFPMatch(eth_src=frame.src))
        self.port_of[datapath.id, frame.src] = in_port
        port = self.port_of.get((datapath.id, frame.dst), ofproto.OFPP_FLOOD)
        if port != ofproto.OFPP_FLOOD:
            match = parser.OFPMatch(in_port=in_port, eth_src=frame.src, eth_dst=frame.dst)
            self.add(datapath, match, port, idle_timeout=IDLE_S)
        actions = [parser.OFPActionOutput(port)]
        out = {"buffer_id": ofproto.OFP_NO_BUFFER, "in_port": in_port, "actions": actions, "data": msg.data}
        datapath.send_msg(parser.OFPPacketOut(datapath, **out))

    def add(self, datapath, match, port, **more):
        ofproto, parser = datapath.ofproto, datapath.ofproto_parser
        output = [parser.OFPActionOutput(port, ofproto.OFPCML_NO_BUFFER)]
        apply = [parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, output)]
        datapath.send_msg(parser.OFPFlowMod(datapath, match=match, instructions=apply, **more))

    def delete(self, datapath, match):
        ofproto = datapath.ofproto
        everywhere = {"out_port": ofproto.OFPP_ANY, "out_group": ofproto.OFPG_ANY}
        mod = datapath.ofproto_parser.OFPFlowMod
        datapath.send_msg(mod(datapath, match=match, command=ofproto.OFPFC_DELETE, **everywhere))


def main(host, port):
    import os_ken.controller.controller  # noqa: F401  (it brings the options below)

    cfg.CONF(args=[], project="os_ken")
    cfg.CONF.set_override("ofp_listen_host", host)
    cfg.CONF.set_override("ofp_tcp_listen_port", int(port))
    # The manager imports applications by name, this one from beside it.
    app_manager.AppManager.run_apps(["os_ken.controller.ofp_handler", "own_manager"])


if __name__ == "__main__":
    main(*sys.argv[1:])
