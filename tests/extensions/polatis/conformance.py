"""A rig of the tests alone, and a bug that public clients have, for the acceptance kit's own tests."""

from __future__ import annotations

import pytest

from ringlight.extensions.polatis.rigs import PolatisTl1Rig
from ringlight.extensions.tl1 import client, grammar
from tests.extensions.polatis.netconf_rig import NetconfRig

RIGS = {"polatis-netconf": NetconfRig}


def up_to_the_first_semicolon(patch: pytest.MonkeyPatch) -> None:
    class FirstSemicolon(grammar.MessageFramer):
        def feed(self, data: bytes) -> list[grammar.Message]:
            return super().feed(data.replace(b";", b"\r\n;", 1))

    patch.setattr(client, "MessageFramer", FirstSemicolon)


MUTANTS = [pytest.param(PolatisTl1Rig, up_to_the_first_semicolon, (7, 28), id="first-semicolon")]
