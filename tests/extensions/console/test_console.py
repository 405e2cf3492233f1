"""The prompt without a lab: the node of a packet switch is a shell in this machine's own network."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringlight.containers.image import ROOT
from ringlight.extensions.console import measures, prompt

pytestmark = pytest.mark.skipif(
    shutil.which("mnexec") is None, reason="needs mnexec of Mininet"
)

PROGRAM = """
import sys
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed.emulation.attached import Attached
from ringlight.extensions.console.prompt import Prompt
from ringlight.extensions.console.view import View
from ringlight.testbed.lab import Lab

FABRIC = {
    "servers": {"s0": {"gpus": {"g0": "test", "g1": "test"}}},
    "packet_switches": {"tor0": {"ports": 2}},
    "optical_switches": {"ocs0": {"size": 2}},
    "links": [{"ends": ["g0", "tor0:1"], "rate": "10 Gbit/s"}, {"ends": ["g1", "ocs0:2"], "rate": "1 Gbit/s"},
              {"ends": ["tor0:2", "ocs0:1"], "rate": "1 Gbit/s"}],
}
INVENTORY = {"time_dilation": 1, "payload_scale": 1, "agent": "unix:/nowhere"}


class Controller:
    def light(self): print("all dark", flush=True)
    def regroup(self, words): raise RuntimeError("no controller answers")


lab = Attached(Lab("zz9z"), INVENTORY, build_fabric(FabricSpec.model_validate(FABRIC)), None, None)
view = View(lab)
try:
    said = Prompt(view, Controller(), sys.argv[1:] or None).said
    print(f"{said.errors} refused", flush=True)
finally:
    view.stop()
"""


def scripted(*lines: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """``before``: what Python does first."""
    program = PROGRAM.replace("\nlab = ", f"\n{before}\nlab = ")
    # In a fork of this process, which has imported what takes another second.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = multiprocessing.get_context("fork").Process(
            target=_execute, args=(program, lines, output.fileno(), errors.fileno())
        )
        process.start()
        process.join(60)
        process.kill()
        process.join()
        output.seek(0)
        errors.seek(0)
        done = subprocess.CompletedProcess(
            lines, process.exitcode, output.read(), errors.read()
        )
    done.check_returncode()
    return done


def _execute(program: str, words: Sequence[str], output: int, errors: int) -> None:
    """What ``python -c`` does, with nothing to read."""
    for source, place in (
        (os.open(os.devnull, os.O_RDONLY), 0),
        (output, 1),
        (errors, 2),
    ):
        os.dup2(source, place)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(0),
        os.fdopen(1, "w"),
        os.fdopen(2, "w", 1),
    )
    sys.argv = ["-c", *words]
    os.chdir(ROOT)
    exec(program, {"__name__": "__main__"})
    sys.stdout.flush()


def test_a_session_from_lines_prints_what_one_would_see() -> None:
    done = scripted(
        "nodes",
        "net",
        "dump",
        "tor0 cd /tmp",
        "tor0 pwd | tr a-z A-Z",
        "light",
        "py 6 * 7",
        "exit",
        "nodes",
    )
    assert done.stdout == (
        "ringlight> nodes\n"
        "available nodes are: \n"
        "g0 g1 ocs0 tor0\n"
        "ringlight> net\n"
        "g0 g0:0=tor0:1\n"
        "g1 g1:0=ocs0:2\n"
        "tor0 tor0:1=g0:0 tor0:2=ocs0:1\n"
        "ocs0 ocs0:2=g1:0 ocs0:1=tor0:2\n"
        "ringlight> dump\n"
        "<gpu g0: eth0:10.82.0.2>\n"
        "<gpu g1: eth0:10.82.0.3>\n"
        "<packet switch tor0: rlzz9z-tor0-1,rlzz9z-tor0-2>\n"
        "<optical switch ocs0: p2,p1>\n"
        "ringlight> tor0 cd /tmp\n"
        "ringlight> tor0 pwd | tr a-z A-Z\n"
        "/TMP\n"
        "ringlight> light\n"
        "all dark\n"
        "ringlight> py 6 * 7\n"
        "42\n"
        "ringlight> exit\n"
        "0 refused\n"
    ).replace("\r", "")
    assert done.stderr == ""


def test_what_is_refused_is_a_line_with_its_number_and_the_next_command_is_carried_out() -> (
    None
):
    done = scripted(
        "nonsense",
        "regroup",
        "link g0 tor0 sideways",
        "link g0 g1 down",
        "g7 ls",
        "light",
    )
    assert done.stderr.splitlines() == [
        "line 1: *** Unknown command: nonsense",
        "line 2: *** no controller answers",
        "line 3: invalid type: link end1 end2 [up down]",
        "line 4: src and dst not connected: g0 g1",
        "line 5: *** Unknown command: g7 ls",
    ]
    assert done.stdout.endswith("all dark\n5 refused\n")


#: Commands that the prompt has from Mininet's class for lines, and that are no words to type.
NO_WORDS = {"EOF"}


def test_help_speaks_of_this_lab_and_not_of_mininets() -> None:
    listed = scripted("help").stdout
    words = set(re.findall(r"^[a-zA-Z]+(?: +[a-zA-Z]+)* *$", listed, re.MULTILINE))
    commands = {word for line in words for word in line.split()} - NO_WORDS
    assert {"capture", "light", "pingallfull", "xterm"} <= commands
    said = listed + scripted(*(f"help {word}" for word in sorted(commands))).stdout
    assert not re.search(r"\bh[1-9]\b|mininet>|px print ", said)
    assert "ringlight> g0 ping g1" in said
    # What it gives as examples can be typed, and what is not here says so and how it is done instead.
    done = scripted(
        "px print(tor0.cmd('echo $((6 * 7))'))",
        "py tor0.cmd('echo here')",
        "noecho tor0 echo seen",
    )
    assert re.findall(r"^(?:42|here|seen)", done.stdout, re.MULTILINE) == [
        "42",
        "here",
        "seen",
    ]
    for word in ("xterm", "gterm", "x", "iperfudp"):
        assert "Not here" in scripted(f"help {word}").stdout, word
    assert (
        scripted("xterm g0").stderr
        == "line 1: xterm: in another terminal: ringlight exec g0 -- bash\n"
    )


SLOW = """
import time
from ringlight.extensions.console import measures
from ringlight.extensions.console.measures import Pinged
Attached.places = lambda lab: {"g0": None, "g1": None}
def slow(lab, places, source, target):
    time.sleep(0 if source == "g0" else 1.5)
    return Pinged(source, target, 0.0012)
measures._ping_any = slow
measures.AT_ONCE = 1
"""


def test_all_pings_are_shown_as_they_come_and_end_after_a_stated_time() -> None:
    done = scripted("pingallfull", "pingpairfull", before=SLOW)
    assert (
        done.stdout.count(
            "g0 -> g1: 1.20 ms\ng1 -> g0: 1.20 ms\n*** Results: 0% dropped (2/2 received)\n"
        )
        == 2
    )
    sooner = SLOW.replace('source == "g0"', "False")
    done = scripted("pingallfull 1", "pingall 1", before=sooner)
    for said in done.stdout.split("ringlight> ")[1:3]:
        assert "*** Results: 0% dropped (1/1 received)\n" in said
        command = said.split()[0]
        assert (
            f"*** 1 of 2 pairs not tried within 1 s; for longer: {command} SECONDS\n"
            in said
        )
    assert "usage: pingallfull [seconds]" in scripted("pingallfull soon").stderr


def test_a_row_of_pings_is_there_before_the_next_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first_was_shown = threading.Event()

    def one(lab: object, places: object, source: str, target: str) -> measures.Pinged:
        assert source == "g0" or first_was_shown.wait(20)
        return measures.Pinged(source, target, 0.001)

    monkeypatch.setattr(measures, "_ping_any", one)
    lab: Any = SimpleNamespace(places=lambda: {"g0": None, "g1": None})
    rows = measures.ping_all(lab, ["g0", "g1"])
    assert [found.target for found in next(rows)] == ["g1"]
    first_was_shown.set()
    assert [found.target for found in next(rows)] == ["g0"]


@pytest.mark.parametrize(
    "words",
    ["", "tor0:1 -t", "tor0:1 -t 0", "tor0:1 -c x", "tor0:1 --direction up", "a b"],
)
def test_a_capture_that_cannot_be_names_its_usage(words: str) -> None:
    assert "usage: capture PORT [-w FILE]" in scripted(f"capture {words}").stderr


def test_a_capture_is_bounded_and_its_file_named(tmp_path: Path) -> None:
    tcpdump = """
from ringlight.extensions.console import capture
def command(tap, direction, write, count):
    told = f"{tap.interface} {direction} {write} {count}"
    return ["sh", "-c", f"echo 'tcpdump: listening on it' >&2; echo {told}; exec sleep 60"]
capture.command = command
"""
    file = tmp_path / "fibre.pcap"
    done = scripted(
        f"capture tor0:1 -w {file} -t 0.2", "capture ocs0:9", before=tcpdump
    )
    shown, refused = done.stdout, done.stderr.splitlines()
    assert re.search(rf"rlzz9z-tor0-1 inout {file} 100000\n", shown)
    assert (
        "*** capturing at tor0:1 (rlzz9z-tor0-1) for 0.2 s; Ctrl-C ends it\n" in shown
    )
    assert refused == [
        f"line 1: *** {file}: it is no capture file",
        "line 2: *** nothing is plugged into ocs0:9; of ocs0 there is ocs0:1, ocs0:2",
    ]
    done = scripted("capture tor0:1 -w /nowhere/f", before=tcpdump)
    assert done.stderr == "line 1: *** /nowhere/f: No such file or directory\n"


def test_a_prompt_changes_no_settings_of_the_machine() -> None:
    done = scripted(
        "light",
        before="import mininet.net; mininet.net.fixLimits = lambda: print('changed')",
    )
    assert done.stdout == "ringlight> light\nall dark\n0 refused\n"


class Typist:
    """Somebody at a terminal."""

    def __init__(self, home: Path) -> None:
        self.master, terminal = pty.openpty()

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "HOME": str(home), "TERM": "dumb"},
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(terminal)
        self.seen = ""

    def types(self, text: str) -> None:
        os.write(self.master, text.encode())

    def sees(self, text: str, timeout_s: float = 30.0) -> str:
        """What came up to and with ``text``."""
        deadline = time.monotonic() + timeout_s
        while text not in self.seen:
            if time.monotonic() > deadline:
                pytest.fail(
                    f"no {text!r} in {self.seen!r}; what runs:\n{self._processes()}"
                )
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
        found, _, self.seen = self.seen.partition(text)
        return found

    def _processes(self) -> str:
        """Who waits for what: the prompt, its shells and their commands, which have sessions of their own."""
        every = "pid,ppid,pgid,stat,pending,caught,ignored,wchan:24,args"
        lines = subprocess.run(
            ["ps", "-eo", every], capture_output=True, text=True, timeout=10
        ).stdout.splitlines()
        family = {self.process.pid}
        for line in sorted(lines[1:], key=lambda line: int(line.split()[0])):
            pid, parent = map(int, line.split()[:2])
            family |= {pid} if parent in family else set()
        return "\n".join(
            line[:200] for line in lines[1:] if int(line.split()[0]) in family
        )

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self.master)


@pytest.fixture
def typist(tmp_path: Path) -> Iterator[Typist]:
    found = Typist(tmp_path)
    try:
        found.sees("ringlight> ")
        yield found
    finally:
        found.end()


def test_control_c_ends_the_command_and_not_the_prompt(typist: Typist) -> None:
    typist.types("half\x03")
    assert "Unknown" not in typist.sees("ringlight> ")
    # Said by what Ctrl-C ends: bash may lose one that comes while it forks.
    typist.types("tor0 sh -c 'echo $((40 + 2)) begins; exec sleep 300'; echo slept\n")
    typist.sees("42 begins")
    typist.types("\x03")
    assert "slept" not in typist.sees("ringlight> ")
    typist.types("tor0 echo here $((40 + 3))\n")
    typist.sees("here 43")


def test_after_many_control_c_the_prompt_takes_the_next_line(typist: Typist) -> None:
    """Bursts as a held key gives them, at the prompt, in a half-typed line and in a command."""
    for number in range(12):
        before = ("", "nod", "sh sleep 60\r")[number % 3]
        typist.types(before)
        time.sleep(0.1 if before else 0.0)
        for pause_s in (0.0, 0.002, 0.01, 0.005, 0.02, 0.0, 0.01):
            typist.types("\x03")
            time.sleep(pause_s)
        time.sleep(0.1)
        # Typed once.
        typist.types(f"py 6000+{number}\r")
        typist.sees(f"\r\n{6000 + number}\r\n")
    typist.types("exit\r")
    typist.sees("0 refused")


def test_control_c_within_a_moment_of_another_does_not_interrupt_what_that_ends() -> (
    None
):
    made = prompt.Prompt.__new__(prompt.Prompt)
    made._busy, made._interrupted_at = True, 0.0
    with pytest.raises(KeyboardInterrupt):
        made._interrupt()
    try:
        made._interrupt()
    except KeyboardInterrupt:
        # It would end the whole suite.
        pytest.fail("what the first one ends is interrupted, too")
    made._interrupted_at -= 2 * prompt.GRACE_S
    with pytest.raises(KeyboardInterrupt):
        made._interrupt()
    made._busy, made._interrupted_at = False, 0.0
    made._interrupt()


def test_control_d_leaves_and_what_was_typed_is_remembered(
    typist: Typist, tmp_path: Path
) -> None:
    typist.types("tor0 ech")
    typist.types("o kept\n")
    typist.sees("kept\r\n")
    typist.sees("ringlight> ")
    typist.types("\x04")
    typist.sees("0 refused")
    assert typist.process.wait(10) == 0
    assert "tor0 echo kept" in (tmp_path / ".ringlight_history").read_text()


def test_tab_completes_names_of_nodes(typist: Typist) -> None:
    typist.types("tor\t echo $((5 * 5))\n")
    typist.sees("25")
    # What is typed while a command runs is the command's.
    typist.sees("ringlight> ")
    typist.types("link g0 to\t sideways\n")
    assert re.search(r"link g0 tor0", typist.sees("invalid type"))
