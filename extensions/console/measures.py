"""Pings and transfers between GPUs, with the machine's own ping and iperf in the GPUs' networks.

O-NICs send nothing as light but payload of TCP: there a ping over the light is an echo of :mod:`light`.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ringlight.extensions.console import light_echoes
from ringlight.testbed.emulation.attached import Attached, NodePlace
from ringlight.testbed.lab import LabError

#: Longest wait for the answer to a ping, seconds; what the light of a grid takes is far below it.
PING_S = 1
IPERF_PORT = 5001
#: Beyond its own duration a transfer may need so long to begin and end, seconds.
IPERF_SLACK_S = 30.0
#: At most so many pings under way at once.
AT_ONCE = 16
#: Pings between all GPUs begin within this, seconds: 128 GPUs are 16,256 pings.
PING_ALL_S = 300.0
_LISTENS = "0A"
_RTT_MS = re.compile(r"time=([0-9.]+) ms")


@dataclass(frozen=True)
class Pinged:
    """Result of one echo: seconds until the reply, None without a reply.

    ``over``: the light of O-NICs that the echo took, else None. ``waited_s``: time until that light was lit,
    seconds.
    """

    source: str
    target: str
    rtt_s: float | None
    over: str | None = None
    waited_s: float = 0.0


def ping(lab: Attached, place: NodePlace, source: str, target: str) -> Pinged:
    """Send one echo request and return the result. Raises LabError if ping itself cannot run."""
    ip = lab.fabric.gpus[target].ip
    try:
        done = lab.run(
            place, ["ping", "-n", "-c1", f"-W{PING_S}", ip], timeout_s=PING_S + 10.0
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"ping from {source} to {target}: {error}") from None
    came = _RTT_MS.search(done.stdout)
    if (
        came is None
        and "packets transmitted" not in done.stdout
        and "unreachable" not in done.stderr
    ):
        lines = (done.stderr or done.stdout).strip().splitlines() or [
            f"exit code {done.returncode}"
        ]
        raise LabError(f"ping from {source} to {target}: {lines[-1]}")
    return Pinged(source, target, float(came[1]) / 1e3 if came else None)


def ping_light(
    lab: Attached, places: Mapping[str, NodePlace], source: str, target: str
) -> Pinged:
    """Send one echo over the current light of O-NICs and return the result. Raises NoLight and LabError."""
    echo = light_echoes.echo(lab, places, source, target)
    return Pinged(source, target, echo.rtt_s, echo.over, echo.waited_s)


def _ping_any(
    lab: Attached, places: Mapping[str, NodePlace], source: str, target: str
) -> Pinged:
    """Ping over the O-NICs' light, else over the control network. Raises LabError."""
    if source in lab.fabric.onics:
        try:
            return ping_light(lab, places, source, target)
        except light_echoes.NoLight:
            pass
    return ping(lab, places[source], source, target)


def ping_all(
    lab: Attached,
    gpus: list[str],
    *,
    control: bool = False,
    within_s: float = PING_ALL_S,
) -> Iterator[list[Pinged]]:
    """Ping from every GPU to every other. Yield one list of results for each GPU that pings, in order. Raises
    LabError.

    ``control``: over the O-NICs' control network, even if there is light. No ping begins later than
    ``within_s`` seconds; pings that have not begun by then are in no list.
    """
    places = lab.places()
    end = time.monotonic() + within_s

    def ping_pair(source: str, target: str) -> Pinged | None:
        if time.monotonic() >= end:
            return None
        if control:
            return ping(lab, places[source], source, target)
        return _ping_any(lab, places, source, target)

    for gpu in gpus:
        if gpu not in places:
            lab.place(gpu)  # says why there is nothing
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = [
            [
                pool.submit(ping_pair, source, target)
                for target in gpus
                if target != source
            ]
            for source in gpus
        ]
        try:
            for row in rows:
                yield [
                    result for future in row if (result := future.result()) is not None
                ]
        finally:
            # Whoever wants no more of them does not wait for those that have not begun.
            pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class Transfer:
    """Rates that a TCP transfer reached, bits per second in emulated time, at the receiver and at the sender.

    ``over``: the light of O-NICs that the transfer took, else None.
    """

    received_bps: float
    sent_bps: float
    over: str | None = None


def iperf(lab: Attached, client: str, server: str, seconds: float) -> Transfer:
    """Measure one TCP transfer from ``client`` to ``server``, over light if they have O-NICs. Return its
    rates. Raises LabError."""
    if client not in lab.fabric.onics:
        return _iperf(lab, client, server, seconds)
    tried = ping_light(lab, lab.places(), client, server)
    if tried.rtt_s is None:
        raise LabError(no_answer(tried))
    light = light_echoes.light_between(lab, client, server)
    with light_echoes.asked_for(lab, light):
        before = light_echoes.packets_on(lab, light)
        transfer = _iperf(lab, client, server, seconds)
        return replace(transfer, over=light_echoes.taken(lab, light, before))


def no_answer(pinged: Pinged) -> str:
    """Return the reason why no reply came over light."""
    within = f"within {light_echoes.ECHO_S:g} s"
    return f"{pinged.target} acknowledged nothing {within}: {pinged.over} does not lead there now"


def _iperf(lab: Attached, client: str, server: str, seconds: float) -> Transfer:
    places = {name: lab.place(name) for name in (client, server)}
    what = f"iperf from {client} to {server}"
    words = ["iperf", "-p", str(IPERF_PORT), "-y", "C"]
    if places[server].elsewhere is not None:
        return _iperf_elsewhere(lab, places, client, server, seconds)
    try:
        serving = subprocess.Popen(
            places[server].command([*words, "-s"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=lab.environment(),
        )
    except OSError as error:
        raise LabError(f"{what}: {error}") from None
    try:
        _await_listening(serving, what)
        ip = lab.fabric.gpus[server].ip
        sending = lab.run(
            places[client],
            [*words, "-t", f"{seconds:g}", "-c", ip],
            timeout_s=seconds + IPERF_SLACK_S,
        )
        sent = _rate(sending.stdout)
        if sent is None:
            lines = (sending.stderr or sending.stdout).strip().splitlines() or [
                "it said nothing"
            ]
            raise LabError(f"{what}: {lines[-1]}")
        assert serving.stdout is not None
        # It writes its line as the connection closes, which may wait for what is still in queues.
        received = _rate(_line_within(serving, IPERF_SLACK_S))
    except subprocess.TimeoutExpired:
        raise LabError(f"{what}: not done {IPERF_SLACK_S:g} s after its time") from None
    finally:
        serving.kill()
        serving.wait(5.0)
        for stream in (serving.stdout, serving.stderr):
            assert stream is not None
            stream.close()
    if received is None:
        raise LabError(f"{what}: the server did not say what it received")
    return Transfer(received, sent)


def _iperf_elsewhere(
    lab: Attached,
    places: Mapping[str, NodePlace],
    client: str,
    server: str,
    seconds: float,
) -> Transfer:
    """The same with a server on another host, which ends after its first connection, or in time."""
    what = f"iperf from {client} to {server}"
    words, longest_s = (
        ["iperf", "-p", str(IPERF_PORT), "-y", "C"],
        seconds + IPERF_SLACK_S,
    )
    serve = ["timeout", f"{longest_s:g}", *words, "-s", "-P", "1"]
    send = [*words, "-t", f"{seconds:g}", "-c", lab.fabric.gpus[server].ip]
    pool = ThreadPoolExecutor(1)
    try:
        serving = pool.submit(lab.run, places[server], serve, timeout_s=longest_s + 5.0)
        deadline = time.monotonic() + 10.0
        while not _listens(
            lab.run(places[server], ["cat", "/proc/net/tcp"], timeout_s=5.0).stdout
        ):
            if serving.done() or time.monotonic() > deadline:
                raise LabError(f"{what}: the server does not listen")
            time.sleep(0.05)
        sent = _rate(lab.run(places[client], send, timeout_s=longest_s).stdout)
        received = None if sent is None else _rate(serving.result(IPERF_SLACK_S).stdout)
    except (subprocess.TimeoutExpired, TimeoutError):
        raise LabError(f"{what}: not done {IPERF_SLACK_S:g} s after its time") from None
    finally:
        pool.shutdown(wait=False)
    if sent is None or received is None:
        raise LabError(
            f"{what}: it did not say what it {'sent' if sent is None else 'received'}"
        )
    return Transfer(received, sent)


def _listens(table: str) -> bool:
    """Return whether a server listens at iperf's port, according to the kernel's table of TCP connections."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return any(
        row[1].endswith(f":{IPERF_PORT:04X}") and row[3] == _LISTENS for row in rows
    )


def _await_listening(serving: subprocess.Popen[str], what: str) -> None:
    """Wait until iperf's server listens in its own network. Raises LabError."""
    deadline = time.monotonic() + 10.0
    table = Path(f"/proc/{serving.pid}/net/tcp")
    while time.monotonic() < deadline:
        if serving.poll() is not None:
            assert serving.stderr is not None
            lines = serving.stderr.read().strip().splitlines() or [
                f"exit code {serving.returncode}"
            ]
            raise LabError(f"{what}: {lines[-1]}")
        if _listens(table.read_text()):
            return
        time.sleep(0.02)
    raise LabError(f"{what}: the server did not listen within 10 s")


def _line_within(process: subprocess.Popen[str], timeout_s: float) -> str:
    import select

    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    return process.stdout.readline() if ready else ""


def _rate(report: str) -> float | None:
    """Bits per second of the last line of iperf's report as CSV."""
    lines = [line for line in report.splitlines() if line.count(",") >= 8]
    return float(lines[-1].split(",")[8]) if lines else None


def line(result: Pinged) -> str:
    """Return the result of a ping as a line for a person."""
    answer = "no answer" if result.rtt_s is None else f"{1e3 * result.rtt_s:.2f} ms"
    over = "" if result.over is None else f" over {result.over}"
    waited = f", lit after {1e3 * result.waited_s:.2f} ms" if result.waited_s else ""
    return f"{result.source} -> {result.target}: {answer}{over}{waited}"


def results(pinged: Mapping[tuple[str, str], Pinged]) -> str:
    """Return the last line of Mininet's pingall."""
    received = sum(result.rtt_s is not None for result in pinged.values())
    lost = 100 * (len(pinged) - received) / len(pinged) if pinged else 0
    return f"*** Results: {lost:.0f}% dropped ({received}/{len(pinged)} received)"


def untried(
    pinged: Mapping[tuple[str, str], Pinged], gpus: int, within_s: float
) -> str | None:
    """Return a line about the pairs of so many GPUs that were not pinged in time, None if there are none."""
    pairs = gpus * (gpus - 1)
    if len(pinged) == pairs:
        return None
    return f"{pairs - len(pinged)} of {pairs} pairs not tried within {within_s:g} s"


def by_light(pinged: Mapping[tuple[str, str], Pinged]) -> str:
    """Return a line with the number of pings that took light, for GPUs with O-NICs."""
    by_light_count = sum(result.over is not None for result in pinged.values())
    rest = len(pinged) - by_light_count
    remark = f"; {rest} took the control network, as no light led there" if rest else ""
    return f"*** {by_light_count} of {len(pinged)} took light{remark}"
