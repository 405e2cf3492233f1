"""Has every packet sent to it, floods it, and asks the topology from its own handler."""

from ryu.base import app_manager
from ryu.controller import ofp_event
from ryu.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from ryu.ofproto import ofproto_v1_3
from ryu.topology.api import get_all_host


class LearnsAndAsks(app_manager.RyuApp):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def features(self, ev):
        path, parser = ev.msg.datapath, ev.msg.datapath.ofproto_parser
        up = parser.OFPActionOutput(
            path.ofproto.OFPP_CONTROLLER, path.ofproto.OFPCML_NO_BUFFER
        )
        apply = parser.OFPInstructionActions(path.ofproto.OFPIT_APPLY_ACTIONS, [up])
        path.send_msg(
            parser.OFPFlowMod(
                datapath=path, priority=0, match=parser.OFPMatch(), instructions=[apply]
            )
        )

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def flood(self, ev):
        path, parser = ev.msg.datapath, ev.msg.datapath.ofproto_parser
        self.logger.info(
            "hosts %s", " ".join(sorted(host.mac for host in get_all_host(self)))
        )
        path.send_msg(
            parser.OFPPacketOut(
                datapath=path,
                buffer_id=path.ofproto.OFP_NO_BUFFER,
                in_port=ev.msg.match["in_port"],
                actions=[parser.OFPActionOutput(path.ofproto.OFPP_FLOOD)],
                data=ev.msg.data,
            )
        )
