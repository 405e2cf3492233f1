"""Asks for all switches and links twice a second, as routing applications in Ryu's form do."""

from ryu.base import app_manager
from ryu.lib import hub
from ryu.ofproto import ofproto_v1_3
from ryu.topology.api import get_link, get_switch


class Counts(app_manager.RyuApp):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        hub.spawn(self.ask)

    def ask(self):
        while True:
            hub.sleep(0.5)
            self.logger.info(
                "switches %d links %d",
                len(get_switch(self, None)),
                len(get_link(self, None)),
            )
