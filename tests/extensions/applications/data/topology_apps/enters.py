"""Listens to topology events only; asks for nothing."""

from ryu.base import app_manager
from ryu.controller.handler import set_ev_cls
from ryu.topology import event


class Enters(app_manager.RyuApp):
    @set_ev_cls(event.EventSwitchEnter)
    def enter(self, ev):
        self.logger.info("entered %d", ev.switch.dp.id)
