"""``ringlight ocs serve`` and clients that are not ours: sockets, lines and HTTP as other people write them.

No driver of ours is used here, and no root: the switch is what somebody else's controller finds.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

from tests.served import Lines, any_port, serving


def test_scpi_by_telnet(tmp_path: Path) -> None:
    options = ["--profile", "piezo", "--ports", "16", *any_port("scpi")]
    with (
        serving(tmp_path, *options) as switch,
        Lines(switch.addresses["scpi"]) as telnet,
    ):
        assert re.fullmatch(
            r"Polatis,N-\w+-16x16-[\w-]+,\w+,[\d.]+\r?\n",
            telnet.ask("*idn?\r\n", b"\n"),
        )
        assert telnet.ask(":oxc:swit:size?\r\n", b"\n").strip() == "16,16"
        telnet.write(":oxc:swit:disc:all\r\n")
        telnet.write(":oxc:swit:conn:add (@1,2,3),(@17,18,19)\r\n")
        assert (
            telnet.ask(":oxc:swit:conn:stat?\r\n", b"\n").strip()
            == "(@1,2,3),(@17,18,19)"
        )
        assert (
            telnet.ask(":oxc:swit:conn:only (@1,2),(@18,17);stat?\r\n", b"\n").strip()
            == "(@1,2),(@18,17)"
        )
        assert telnet.ask(":oxc:swit:conn:port? 2\r\n", b"\n").strip() == '"17"'
        telnet.write(":oxc:swit:conn:sub (@1),(@18)\r\n")
        assert telnet.ask(":oxc:swit:conn:stat?\r\n", b"\n").strip() == "(@2),(@17)"
        telnet.write(":oxc:swit:port:dis (@4)\r\n")
        assert telnet.ask(":oxc:swit:port:stat? (@3,4)\r\n", b"\n").strip() == "(E,D)"
        power = telnet.ask(":pmon:pow? (@1,17)\r\n", b"\n").strip()
        assert re.fullmatch(r"\((-?\d+\.\d+),(-?\d+\.\d+)\)", power)
        telnet.write(":oxc:swit:conn:add (@1),(@99)\r\n")
        assert telnet.ask(":syst:err?\r\n", b"\n").startswith("-222")
        telnet.write(":oxc:swit:disc:all;*cls\r\n")
        # As the telnet program sends the end of a line that has a CR already.
        telnet.write(":oxc:swit:conn:add (@7),(@23)\r\0\r\n")
        assert telnet.ask(":oxc:swit:conn:stat?\r\0\r\n", b"\n").strip() == "(@7),(@23)"
        telnet.write(":oxc:swit:disc:all\r\n")


def test_what_it_was_told_is_there_after_a_restart(tmp_path: Path) -> None:
    options = [
        "--profile",
        "piezo",
        "--ports",
        "8",
        "--state",
        f"{tmp_path}/state",
        *any_port("scpi"),
    ]
    with serving(tmp_path, *options) as first, Lines(first.addresses["scpi"]) as telnet:
        telnet.write(":oxc:swit:port:dis (@5)\n:oxc:swit:conn:add (@1,2),(@10,9)\n")
        assert telnet.ask(":oxc:swit:conn:stat?\n", b"\n") == "(@1,2),(@10,9)\n"
        # As by a failure of power: it cannot say good-bye.
        first.end(signal.SIGKILL)
    # What a start did is what the next one finds.
    for recovery, kept in (("restore", True), ("remove", False), ("maintain", False)):
        again = serving(tmp_path, *options, "--recovery", recovery)
        with again as later, Lines(later.addresses["scpi"]) as telnet:
            standing = "(@1,2),(@10,9)\n" if kept else "(@),(@)\n"
            assert telnet.ask(":oxc:swit:conn:stat?\n", b"\n") == standing, recovery
            assert telnet.ask(":oxc:swit:port:stat? (@4,5)\n", b"\n") == "(E,D)\n"
            later.end(signal.SIGKILL)
