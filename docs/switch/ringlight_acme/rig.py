"""Acme's emulated switch on the bench of the acceptance kit."""

import re

from ringlight.testbed.rigs.emulated import ScpiRig
from ringlight.testbed.rigs.proxy import Proxy


class AcmeProxy(Proxy):
    """Passes lines between a client and the switch; as the base class has it, each has one as its reply."""

    WRITE = re.compile(rb"CONNECT|CLEAR|ENABLE|DISABLE")
    READ = re.compile(rb"SHOW")


class AcmeRig(ScpiRig):
    """The emulated switch with such a proxy before its port."""

    protocol = "acme"
    profile = "acme-p"
    proxy_of = AcmeProxy
    addition = "CONNECT"
    removal = "CLEAR"
    shows_tuning = True
