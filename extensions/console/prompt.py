"""The prompt: Mininet's own command line over a lab that runs, with the light of its fabric."""

from __future__ import annotations

import argparse
import logging
import os
import readline
import shlex
import signal
import sys
import termios
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol

from mininet.cli import CLI
from mininet.log import StreamHandlerNoNewline, error, lg, output

from ringlight.extensions.console import capture, measures
from ringlight.extensions.console.measures import Pinged
from ringlight.extensions.console.view import View
from ringlight.fabric.units import format_rate
from ringlight.testbed.faults import FaultClient, FaultError

#: Where what was typed is kept, and how much of it.
HISTORY = Path("~/.ringlight_history")
HISTORY_LINES = 1000
#: Longest wait for a link to be cut or whole again, and for a switch, seconds.
CHANGE_S = 40.0
IPERF_S = 5.0
#: After a Ctrl-C others do nothing for so long, seconds: what it ends needs that to end in order.
GRACE_S = 0.05
#: What ends a capture of which nothing else is said, seconds and packets; and the longest that may be asked.
CAPTURE_S, CAPTURE_PACKETS, LONGEST_CAPTURE_S = 10.0, 100_000, 3600.0
#: Pings without an answer of which it is asked why, at most.
MOST_WHY = 64
HELP = """
{prompt}NODE COMMAND        a command in a shell at a node, as in Mininet:
{prompt}{a} ip addr
{prompt}{a} ping {b}          after the first word, names of GPUs become their addresses
{prompt}noecho {a} COMMAND  the same, with echoing turned off
help COMMAND tells how a command is used; Ctrl-C ends a command, exit the prompt.
"""
#: What a command may raise that is a line for the user and not a fault of ours.
Refused = (RuntimeError, OSError, ValueError)


class Controller(Protocol):
    """Requests of the prompt to the lab's controller. Each method prints the answer, or raises
    RuntimeError."""

    def light(self) -> None:
        """Print the cross-connects that are lit."""

    def regroup(self, words: list[str]) -> None:
        """Move GPUs together."""

    def path(self, source: str, destination: str) -> None:
        """The links that packets take."""

    def why_not(self, source: str, destination: str) -> str:
        """Return the reason why no packet gets through, one line."""


class Said(StreamHandlerNoNewline):  # type: ignore[misc]
    """Mininet's output: errors on standard error and counted, all else on standard output.

    ``where``: stands before an error.
    """

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.errors = 0
        self.where = ""

    def emit(self, record: logging.LogRecord) -> None:
        wrong = record.levelno >= logging.ERROR
        if wrong:
            self.errors += 1
            record.msg = f"{self.where}{record.msg}"
        self.stream = sys.stderr if wrong else sys.stdout
        super().emit(record)


class Prompt(CLI):  # type: ignore[misc]
    """Mininet's prompt. ``lines``: commands to carry out in place of asking for them; they are printed, too.

    ``said.errors`` counts the commands that were refused.
    """

    prompt = "ringlight> "

    def __init__(
        self, view: View, controller: Controller, lines: Iterable[str] | None = None
    ) -> None:
        self.controller = controller
        self.lines = lines
        gpus = [*view.lab.fabric.gpus]
        self.helpStr = HELP.format(prompt=self.prompt, a=gpus[0], b=gpus[-1])
        self.said = Said()
        self.said.setFormatter(logging.Formatter("%(message)s"))
        lg.handlers[:] = [self.said]
        lg.setLogLevel("output")
        # A command in a node reads what is typed; a file's lines are the prompt's and not the command's.
        self._nothing = None if lines is None else os.pipe()
        #: Whether a command is carried out, which Ctrl-C ends; when it did so last.
        self._busy, self._interrupted_at = True, 0.0
        self._terminal: list[Any] | None = None
        stdin: IO[Any] = (
            sys.stdin if self._nothing is None else os.fdopen(self._nothing[0])
        )
        super().__init__(view, stdin=stdin)

    # -- reading

    def initReadline(self) -> None:
        """History in a file of our own, and names of nodes among what Tab completes."""
        if self.lines is not None:
            return
        history = HISTORY.expanduser()
        with suppress(OSError):
            readline.read_history_file(history)
        readline.set_history_length(HISTORY_LINES)
        # A port is one word.
        readline.set_completer_delims(" \t\n")
        # Ctrl-C is a key while we wait for a line, and makes of it a comment.
        readline.parse_and_bind('"\\C-c": insert-comment')

    def run(self) -> None:
        """Ask for commands until ``exit`` or the end of input, or carry out the lines."""
        try:
            if self.lines is None:
                self._converse()
                return
            for number, line in enumerate(self.lines, 1):
                self.said.where = f"line {number}: "
                output(f"{self.prompt}{line.rstrip()}\n")
                if self.onecmd(self.precmd(line.strip())):
                    return
        finally:
            if self._nothing is not None:
                os.close(self._nothing[1])
                self.stdin.close()

    def _converse(self) -> None:
        """Ask for commands. Ctrl-C ends a command, and at the prompt drops the line."""
        previous = signal.signal(signal.SIGINT, self._interrupt)
        try:
            # Python's reading of lines may miss a signal until the next Enter, and then drop that line; so
            # there is none meanwhile.
            if sys.stdin.isatty() and sys.stdout.isatty():
                self._terminal = termios.tcgetattr(sys.stdin)
            super().run()
        finally:
            self._interruptible(True)
            signal.signal(signal.SIGINT, previous)
        with suppress(OSError):
            readline.write_history_file(HISTORY.expanduser())

    def _interrupt(self, *_: object) -> None:
        now = time.monotonic()
        if self._busy and now - self._interrupted_at > GRACE_S:
            self._interrupted_at = now
            raise KeyboardInterrupt

    def _interruptible(self, on: bool) -> None:
        """Set whether Ctrl-C is a signal."""
        if self._terminal is not None:
            *flags, keys = self._terminal
            keys = [*keys]
            keys[termios.VINTR] = b"\3" if on else b"\0"
            # It may be gone, which reading says.
            with suppress(termios.error):
                termios.tcsetattr(sys.stdin, termios.TCSANOW, [*flags, keys])
            self._busy = on

    def preloop(self) -> None:
        self._interruptible(False)

    def precmd(self, line: str) -> str:
        self._interruptible(True)
        last = readline.get_current_history_length()
        if line.startswith("#") and last and readline.get_history_item(last) == line:
            readline.remove_history_item(last - 1)
        return str(super().precmd(line))

    def postcmd(self, stop: bool, line: str) -> bool:
        if not stop:
            self._interruptible(False)
        return stop

    def do_source(self, line: str) -> bool:
        """Read commands from an input file. Return whether one of them ends the prompt.
        Usage: source <file>"""
        words = line.split()
        if len(words) != 1:
            error("usage: source <file>\n")
            return False
        lines = Path(words[0]).read_text(encoding="utf-8").splitlines()
        return any(self.onecmd(self.precmd(command.strip())) for command in lines)

    def onecmd(self, line: str) -> bool:
        """Run one command. Print a line if the command fails, so that the next may be typed. Return whether
        the prompt ends."""
        try:
            return bool(super().onecmd(line))
        except Refused as refusal:
            error(f"*** {' '.join(str(refusal).split()) or type(refusal).__name__}\n")
            return False

    def completenames(self, text: str, *_ignored: Any) -> list[str]:
        return [*super().completenames(text), *self._nodes_from(text)]

    def completedefault(self, text: str, *_ignored: Any) -> list[str]:
        return self._nodes_from(text)

    def _nodes_from(self, text: str) -> list[str]:
        return [name for name in self.mn if name.startswith(text)]

    # -- what there is

    def do_net(self, _line: str) -> None:
        "List what is plugged together: each node's ports, and what is at the other end."
        for node in self.mn.values():
            ends = []
            for plug in node.intfList():
                ends_of = (plug.link.intf1, plug.link.intf2) if plug.link else ()
                ends += [
                    f"{plug}={other}" for other in ends_of if other is not plug
                ] or [str(plug)]
            output(" ".join([node.name, *ends]) + "\n")

    def do_links(self, _line: str) -> None:
        "Report on links: both ends, and the real rate."
        states = {node.name: node.states() for node in self.mn.values()}
        for link in self.mn.links:
            ends = " ".join(
                states[p.node.name].get(p.name, "MISSING")
                for p in (link.intf1, link.intf2)
            )
            rate = self.mn.real_bps.get(link)
            output(
                f"{link} ({ends})"
                + ("" if rate is None else f" {format_rate(rate)}")
                + "\n"
            )

    def do_intfs(self, _line: str) -> None:
        "List interfaces by the names that they have where the node is."
        for node in self.mn.values():
            output(f"{node.name}: {','.join(plug.name for plug in node.intfList())}\n")

    def do_light(self, _line: str) -> None:
        "Print the lit cross-connects of the optical switches."
        self.controller.light()

    def do_path(self, line: str) -> None:
        """The links that packets take now, by the flow tables.
        Usage: path gpu1 gpu2"""
        words = line.split()
        if len(words) != 2:
            error("usage: path gpu1 gpu2\n")
            return
        self.controller.path(*words)

    # -- trying

    def default(self, line: str) -> None:
        """A command at a node, as in Mininet."""
        first, *words = line.split()
        if (
            words
            and first in self.mn
            and self.mn.lab.place(first).elsewhere is not None
        ):
            output(self.mn[first].cmd(*(self._address(word) or word for word in words)))
            return
        super().default(line)
        if first in self.mn.lab.fabric.onics and words[:1] in (["ping"], ["fping"]):
            output(
                "*** That took the control network; over the light: ping gpu1 gpu2\n"
            )

    def _address(self, name: str) -> str | None:
        """The IP address of a node, None of any other word."""
        plug = self.mn[name].defaultIntf() if name in self.mn else None
        return None if plug is None else plug.updateIP()

    def do_ping(self, line: str) -> None:
        """Ping from one GPU to another; of O-NICs over the light that is lit now.
        Usage: ping gpu1 gpu2 [count]"""
        words = line.split()
        count = [*words, "1"][2] if len(words) in (2, 3) else ""
        if not (count.isdecimal() and 0 < int(count) <= 1000):
            error("usage: ping gpu1 gpu2 [count]\n")
            return
        source, target = words[:2]
        self._known(source, target)
        places = self.mn.lab.places()
        for _ in range(int(count)):
            if source in self.mn.lab.fabric.onics:
                pinged = measures.ping_light(self.mn.lab, places, source, target)
            else:
                pinged = measures.ping(
                    self.mn.lab, self.mn.lab.place(source), source, target
                )
            output(measures.line(pinged) + "\n")
        if pinged.rtt_s is None:
            error(f"*** {self._why(pinged)}\n")

    def _why(self, result: Pinged) -> str:
        """Return the reason why no reply came."""
        return (
            measures.no_answer(result)
            if result.over
            else self.controller.why_not(result.source, result.target)
        )

    def do_pingall(self, line: str) -> None:
        """Ping between all GPUs for at most 300 seconds or as many as said; why where nothing comes back.
        Usage: pingall [seconds]"""
        self._ping("pingall", line, len(self.mn.hosts), full=False)

    def do_pingallfull(self, line: str) -> None:
        """As pingall, with the time of each answer.
        Usage: pingallfull [seconds]"""
        self._ping("pingallfull", line, len(self.mn.hosts), full=True)

    def do_pingpair(self, line: str) -> None:
        """Ping between the first two GPUs.
        Usage: pingpair [seconds]"""
        self._ping("pingpair", line, 2, full=False)

    def do_pingpairfull(self, line: str) -> None:
        """As pingpair, with the time of each answer.
        Usage: pingpairfull [seconds]"""
        self._ping("pingpairfull", line, 2, full=True)

    def _ping(self, command: str, line: str, count: int, *, full: bool) -> None:
        """``full``: a line for each pair, else one for each GPU; each is shown when it has come."""
        words = line.split()
        if len(words) > 1 or not all(map(_is_time, words)):
            error(f"usage: {command} [seconds]\n")
            return
        within_s = float(words[0]) if words else measures.PING_ALL_S
        gpus = [host.name for host in self.mn.hosts[:count]]
        output("*** Ping: testing ping reachability\n")
        pinged: dict[tuple[str, str], Pinged] = {}
        for row in measures.ping_all(self.mn.lab, gpus, within_s=within_s):
            pinged |= {(result.source, result.target): result for result in row}
            marks = [
                result.target if result.rtt_s is not None else "X" for result in row
            ]
            if full:
                output("".join(f"{measures.line(result)}\n" for result in row))
            else:
                output(f"{row[0].source} -> {' '.join(marks)} \n" if row else "")
        output(measures.results(pinged) + "\n")
        if self.mn.lab.fabric.onics:
            output(measures.by_light(pinged) + "\n")
        self._why_lost([result for result in pinged.values() if result.rtt_s is None])
        if left := measures.untried(pinged, len(gpus), within_s):
            output(f"*** {left}; for longer: {command} SECONDS\n")

    def _why_lost(self, lost: list[Pinged]) -> None:
        why: dict[str, list[str]] = {}
        for result in lost[:MOST_WHY]:
            why.setdefault(self._why(result), []).append(
                f"{result.source}->{result.target}"
            )
        for reason, pairs in why.items():
            more = f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
            output(f"*** {' '.join(pairs[:4])}{more}: {reason}\n")
        if len(lost) > MOST_WHY:
            output(f"*** {len(lost) - MOST_WHY} more had no answer\n")

    def do_iperf(self, line: str) -> None:
        """TCP rate from one GPU to another.
        Usage: iperf [gpu1 gpu2 [seconds]]"""
        words = line.split() or [self.mn.hosts[0].name, self.mn.hosts[-1].name]
        if len(words) not in (2, 3) or not all(map(_is_time, words[2:])):
            error("usage: iperf gpu1 gpu2 [seconds]\n")
            return
        self._known(*words[:2])
        output(f"*** Iperf: testing TCP bandwidth between {words[0]} and {words[1]} \n")
        transfer = measures.iperf(
            self.mn.lab, words[0], words[1], float([*words, str(IPERF_S)][2])
        )
        scale = self.mn.lab.scale
        output(
            f"*** Results: {format_rate(transfer.received_bps)} received, "
            f"{format_rate(transfer.sent_bps)} sent"
            + (
                f"; as real, {format_rate(transfer.received_bps * scale)} received"
                if scale != 1
                else ""
            )
            + (f"; over {transfer.over}\n" if transfer.over else "\n")
        )

    def do_capture(self, line: str) -> None:
        """Capture packets at a port such as ocs0:1 or tor0:1, or a GPU's NIC: as text or into a pcap file.
        Ends after 10 seconds and 100,000 packets unless said otherwise. Something to see: g0 ping g1 &
        Usage: capture PORT [-w FILE] [-t SECONDS] [-c PACKETS] [--direction in|out|inout]"""
        try:
            options = _capture_of(line)
        except (ValueError, argparse.ArgumentError) as wrong:
            usage = "capture PORT [-w FILE] [-t SECONDS] [-c PACKETS] [--direction in|out|inout]"
            error(f"usage: {usage}: {wrong}\n")
            return
        tap = capture.tap_of(self.mn.lab, options.port)
        if options.write is not None:
            capture.check_writable(Path(options.write))
        words = capture.command(tap, options.direction, options.write, options.count)
        what = f"{options.port} ({tap.interface})"
        with capture.capturing(words, self.mn.lab, what) as running:
            output(f"*** capturing at {what} for {options.time:g} s; Ctrl-C ends it\n")
            sys.stdout.flush()
            # Who ends it by Ctrl-C has had what was wanted.
            with suppress(KeyboardInterrupt):
                running.ended(options.time)
        if running.dropped is not None:
            output(f"*** {running.dropped}: the capture is not whole\n")
        if options.write is not None:
            seen = capture.read(Path(options.write))
            packets, size = (
                sum(colour_count.packets for colour_count in seen),
                sum(colour_count.bytes for colour_count in seen),
            )
            output(f"*** {options.write}: {packets} packets, {size} bytes\n")
            if tap.tagged:
                output(
                    "".join(f"***   {colour}\n" for colour in capture.described(seen))
                )

    def do_iperfudp(self, _line: str) -> None:
        "Not here: write NODE iperf -u …"
        error(
            "iperfudp: run it by hand: g1 iperf -s -u & and then g0 iperf -u -b 1M -c g1\n"
        )

    def do_xterm(self, line: str, term: str = "xterm") -> None:
        "Not here: a shell at a node is ringlight exec NODE -- bash, in another terminal."
        node = [*line.split(), "NODE"][0]
        error(f"{term}: in another terminal: ringlight exec {node} -- bash\n")

    def do_gterm(self, line: str) -> None:
        "Not here: a shell at a node is ringlight exec NODE -- bash, in another terminal."
        self.do_xterm(line, "gterm")

    def do_x(self, line: str) -> None:
        "Not here: a shell at a node is ringlight exec NODE -- bash, in another terminal."
        self.do_xterm(line, "x")

    def do_py(self, line: str) -> None:
        """Evaluate a Python expression; names of nodes may be used.
        Usage: py g0.cmd('ls')"""
        super().do_py(line)

    def do_px(self, line: str) -> None:
        """Execute a Python statement; names of nodes may be used.
        Usage: px print(g0.cmd('ls'))"""
        super().do_px(line)

    def do_time(self, line: str) -> None:
        """Measure how long another command takes.
        Usage: time pingall"""
        super().do_time(line)

    def _known(self, *gpus: str) -> None:
        for name in gpus:
            if name not in self.mn.lab.fabric.gpus:
                raise ValueError(
                    f"there is no GPU {name}; there is {', '.join(self.mn.lab.fabric.gpus)}"
                )

    # -- changing

    def do_regroup(self, line: str) -> None:
        """Move GPUs so that the least traffic of jobs crosses between packet switches.
        Usage: regroup [--dry-run] [job ...]"""
        self.controller.regroup(line.split())

    def do_link(self, line: str) -> None:
        """Cut the link(s) between two nodes, or mend them.
        Usage: link node1 node2 [up/down]"""
        words = line.split()
        if len(words) != 3:
            error("invalid number of args: link end1 end2 [up down]\n")
        elif words[2] not in ("up", "down"):
            error("invalid type: link end1 end2 [up down]\n")
        else:
            nodes = [self.mn.nameToNode.get(name) for name in words[:2]]
            if None in nodes:
                error(f"{words[nodes.index(None)]} not in network\n")
                return
            links = [
                link
                for link in self.mn.linksBetween(*nodes)
                if link in self.mn.real_bps
            ]
            if not links:
                error(f"src and dst not connected: {words[0]} {words[1]}\n")
            for link in links:
                self._change(
                    "cut", f"link {link.intf1} {link.intf2}", back=words[2] == "up"
                )

    def do_switch(self, line: str) -> None:
        """Take the power of a switch away, or give it back.
        Usage: switch name [start/stop]"""
        words = line.split()
        if len(words) != 2 or words[1] not in ("start", "stop"):
            error("usage: switch name [start stop]\n")
            return
        self._change("kill", f"switch {words[0]}", back=words[1] == "start")

    def _change(self, do: str, target: str, *, back: bool) -> None:
        """A fault by the lab's fault service, or its end; waits until it is seen to be so."""
        with FaultClient(str(self.mn.lab.inventory["agent"])) as faults:
            fault = faults.ask("restore" if back else do, target)
            goal = "over" if back else "in force"
            deadline = time.monotonic() + CHANGE_S
            while (report := faults.fault(fault)).state != goal:
                if report.error is not None:
                    raise FaultError(None, f"{target}: {report.error}")
                if time.monotonic() > deadline:
                    raise FaultError(
                        None, f"{target} was not {goal} after {CHANGE_S:g} s"
                    )
                time.sleep(0.02)

    # -- of Mininet, what makes no sense here

    def do_ports(self, _line: str) -> None:
        "Ports of packet and optical switches, and what their interfaces are called."
        for node in self.mn.switches:
            output(
                " ".join(
                    [node.name, *(f"{plug}={plug.name}" for plug in node.intfList())]
                )
                + "\n"
            )

    def do_dpctl(self, line: str) -> None:
        """Run ovs-ofctl on all packet switches.
        Usage: dpctl command [arg1] [arg2] ..."""
        words = line.split()
        if not words:
            error("usage: dpctl command [arg1] [arg2] ...\n")
            return
        for name in self.mn.lab.fabric.packet_switches:
            output(f"*** {name} {'-' * 72}\n")
            bridge = self.mn.lab.bridge(name)
            output(
                self.mn[name].cmd(
                    "ovs-ofctl", "-O", "OpenFlow13", words[0], bridge, *words[1:]
                )
            )


class _Words(argparse.ArgumentParser):
    """Raises ValueError for what it cannot read."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _capture_of(line: str) -> argparse.Namespace:
    """Return the options of ``capture``, which are those of the shell's command. Raises ValueError,
    argparse.ArgumentError."""
    words = _Words(
        prog="capture", add_help=False, allow_abbrev=False, exit_on_error=False
    )
    words.add_argument("port")
    words.add_argument("-w", "--write")
    words.add_argument("-t", "--time", type=float, default=CAPTURE_S)
    words.add_argument("-c", "--count", type=int, default=CAPTURE_PACKETS)
    words.add_argument("--direction", choices=("in", "out", "inout"), default="inout")
    options = words.parse_args(shlex.split(line))
    if not 0.1 <= options.time <= LONGEST_CAPTURE_S:
        raise ValueError(f"0.1 to {LONGEST_CAPTURE_S:g} seconds")
    if options.count < 1:
        raise ValueError("at least one packet")
    return options


def _is_time(word: str) -> bool:
    """Return whether a word is a duration in seconds, from 0.1 to 3600."""
    try:
        return 0.1 <= float(word) <= 3600
    except ValueError:
        return False
