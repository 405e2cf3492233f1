"""A rig of the tests alone, and a bug that public clients have, for the acceptance kit's own tests."""

from __future__ import annotations

import pytest

from ringlight.extensions.polatis.polatis_rigs import PolatisTl1Rig
from ringlight.extensions.tl1 import tl1_client, tl1_grammar
from tests.extensions.polatis.netconf_rig import NetconfRig

RIGS = {"polatis-netconf": NetconfRig}


def up_to_the_first_semicolon(patch: pytest.MonkeyPatch) -> None:
    class FirstSemicolon(tl1_grammar.MessageFramer):
        def feed(self, data: bytes) -> list[tl1_grammar.Message]:
            return super().feed(data.replace(b";", b"\r\n;", 1))

    patch.setattr(tl1_client, "MessageFramer", FirstSemicolon)


MUTANTS = [
    pytest.param(
        PolatisTl1Rig, up_to_the_first_semicolon, (7, 28), id="first-semicolon"
    )
]
