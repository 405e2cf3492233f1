"""Light for elephants, after c-Through and Helios: two hosts that exchange much get a circuit.

Runs beside the learning switch, whose flows it counts:

    ringlight up docs/applications/two_switches.yaml --app docs/applications/learning_switch.py --app THIS

Once a second it asks each switch for its flows. A pair of hosts at two switches that sends ELEPHANT_BPS
(environment; 5 Mbit/s as emulated) gets two dark ports of these switches joined, by Ringlight's REST, and its
packets, and no others, go there. When it sends less than a quarter of that for three seconds, it is put back.
`GET /elephants` says which pairs have light now.
"""

import json
import os
import ssl
import time
import urllib.error
import urllib.request

from ryu.app.wsgi import ControllerBase, Response, WSGIApplication, route
from ryu.base import app_manager
from ryu.controller import ofp_event
from ryu.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from ryu.lib import hub
from ryu.ofproto import ofproto_v1_3

RINGLIGHT = os.environ["RINGLIGHT_REST"]
TRUSTED = None
if "RINGLIGHT_CACERT" in os.environ:
    TRUSTED = ssl.create_default_context(cafile=os.environ["RINGLIGHT_CACERT"])
    # It is on this machine, which its certificate may call by another name.
    TRUSTED.check_hostname = False
ELEPHANT_BPS = float(os.environ.get("ELEPHANT_BPS", "5e6"))
PERIOD_S, PATIENCE_S = 1.0, 3.0
#: Priorities of the pair's flows, and of the flow that drops what else comes out of a circuit.
PAIR, OTHERS = 20, 10


def ringlight(method, path, body=None):
    """Ringlight's answer. Raises OSError; of a refusal its text is Ringlight's reason."""
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get("RINGLIGHT_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(RINGLIGHT + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20, context=TRUSTED) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise OSError(error.read().decode()) from error


def circuits():
    """The pairs of ports that are joined by light now."""
    return [one["ends"] for one in ringlight("GET", "/v1/circuits")["circuits"] if one["duplex"]]


class Elephants(app_manager.RyuApp):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    _CONTEXTS = {"wsgi": WSGIApplication}

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.datapaths = {}
        #: Bytes, and when, by switch and pair; bit/s by pair; when a pair was last an elephant.
        self.counted, self.rate, self.large_at = {}, {}, {}
        #: The ports that are joined, as (dpid, port) of either end, by pair.
        self.lit = {}
        kwargs["wsgi"].register(ElephantsRest, {"app": self})
        hub.spawn(self.watch)

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def state_handler(self, ev):
        if ev.state == MAIN_DISPATCHER:
            self.datapaths[ev.datapath.id] = ev.datapath
        else:
            self.datapaths.pop(ev.datapath.id, None)

    def watch(self):
        while True:
            for datapath in list(self.datapaths.values()):
                datapath.send_msg(datapath.ofproto_parser.OFPFlowStatsRequest(datapath))
            hub.sleep(PERIOD_S)
            try:
                self.decide()
            except OSError as error:
                self.logger.warning("no circuit: %s", error)

    @set_ev_cls(ofp_event.EventOFPFlowStatsReply, MAIN_DISPATCHER)
    def flow_stats_handler(self, ev):
        dpid, now = ev.msg.datapath.id, time.monotonic()
        total = {}
        for flow in ev.msg.body:
            if "eth_src" in flow.match and "eth_dst" in flow.match:
                pair = flow.match["eth_src"], flow.match["eth_dst"]
                total[pair] = total.get(pair, 0) + flow.byte_count
        for pair, count in total.items():
            before, then = self.counted.get((dpid, pair), (count, now - PERIOD_S))
            self.counted[dpid, pair] = count, now
            # A flow that was written anew begins at 0.
            self.rate[dpid, pair] = 8 * max(0, count - before) / (now - then)
        for key in [key for key in self.rate if key[0] == dpid and key[1] not in total]:
            del self.rate[key]

    def decide(self):
        now = time.monotonic()
        rates = {}
        for (_, pair), rate in list(self.rate.items()):
            ends = tuple(sorted(pair))
            rates[ends] = max(rate, rates.get(ends, 0.0))
        for ends, rate in rates.items():
            if rate >= (ELEPHANT_BPS / 4 if ends in self.lit else ELEPHANT_BPS):
                self.large_at[ends] = now
                if ends not in self.lit:
                    self.light(ends)
        for ends in [e for e in self.lit if now - self.large_at[e] > PATIENCE_S]:
            self.put_back(ends)

    def light(self, ends):
        switches = ringlight("GET", "/v1/packet-switches")
        place = {
            entry["mac"]: (switch, entry["port"])
            for switch in switches
            for entry in switch["attached"]
            if entry["mac"] in ends
        }
        if len(place) < 2:
            return
        (one, one_port), (two, two_port) = (place[mac] for mac in ends)
        dark = [next((e["port"] for e in s["attached"] if e["peer"] is None), None) for s in (one, two)]
        if (
            one["dpid"] == two["dpid"]
            or None in dark
            or not {one["dpid"], two["dpid"]} <= set(self.datapaths)
        ):
            return
        fibre = [(one["dpid"], dark[0]), (two["dpid"], dark[1])]
        # First, or what one switch floods would come back by the other way, for ever.
        for dpid, port in fibre:
            self.keep_others_out(self.datapaths[dpid], port)
        names = [f"{switch['name']}:{port}" for switch, port in zip((one, two), dark, strict=True)]
        ringlight("PUT", "/v1/circuits", {"circuits": [*circuits(), names]})
        self.lit[ends] = fibre
        # The far end first: a packet that comes there must find its way.
        for (dpid, port), mac, out in zip(fibre, ends, (one_port, two_port), strict=True):
            self.write(dpid, PAIR, {"in_port": port, "eth_dst": mac}, out)
        for (dpid, port), mac, other in zip(fibre, ends, reversed(ends), strict=True):
            self.write(dpid, PAIR, {"eth_src": mac, "eth_dst": other}, port)
        self.logger.info("%s and %s exchange much: %s are joined", *ends, " and ".join(names))

    def put_back(self, ends):
        fibre = self.lit[ends]
        names = {switch["dpid"]: switch["name"] for switch in ringlight("GET", "/v1/packet-switches")}
        for (dpid, _), mac, other in zip(fibre, ends, reversed(ends), strict=True):
            self.write(dpid, PAIR, {"eth_src": mac, "eth_dst": other}, None)
        gone = {f"{names[dpid]}:{port}" for dpid, port in fibre}
        others = [pair for pair in circuits() if not gone & set(pair)]
        ringlight("PUT", "/v1/circuits", {"circuits": others})
        for (dpid, port), mac in zip(fibre, ends, strict=True):
            self.write(dpid, PAIR, {"in_port": port, "eth_dst": mac}, None)
            # Something else may be lit to this port next.
            self.write(dpid, OTHERS, {"in_port": port}, None)
        del self.lit[ends]
        self.logger.info("%s and %s: light put back", *ends)

    def keep_others_out(self, datapath, port):
        parser = datapath.ofproto_parser
        match = parser.OFPMatch(in_port=port)
        datapath.send_msg(parser.OFPFlowMod(datapath, priority=OTHERS, match=match, instructions=[]))

    def write(self, dpid, priority, match, port):
        """A flow to a port; None takes it away."""
        datapath = self.datapaths.get(dpid)
        if datapath is None:
            return
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        command = ofproto.OFPFC_ADD if port is not None else ofproto.OFPFC_DELETE_STRICT
        actions = [parser.OFPActionOutput(port)] if port is not None else []
        datapath.send_msg(
            parser.OFPFlowMod(
                datapath,
                command=command,
                priority=priority,
                match=parser.OFPMatch(**match),
                out_port=ofproto.OFPP_ANY,
                out_group=ofproto.OFPG_ANY,
                instructions=[parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions)],
            )
        )


class ElephantsRest(ControllerBase):
    def __init__(self, req, link, data, **config):
        super().__init__(req, link, data, **config)
        self.app = data["app"]

    @route("elephants", "/elephants", methods=["GET"])
    def elephants(self, req, **kwargs):
        found = [{"hosts": list(ends), "ports": fibre} for ends, fibre in self.app.lit.items()]
        return Response(content_type="application/json", text=json.dumps(found))
