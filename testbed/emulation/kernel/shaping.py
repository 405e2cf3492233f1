"""Rates and queues of interfaces, by the kernel's token buckets.

A fibre's egress has a token bucket (TBF) of the link's rate. Its bucket must hold one frame, or the frame
would never pass, and what goes out during the kernel's timer lateness, or tokens are lost and the rate with
them; every byte more lets a burst through faster than the link. So: one frame + 200 µs at the rate.
What leaves a packet switch or a GPU's NIC is shared by flows that do not hold each other back. See
:func:`shape_shared` for what takes turns where.
"""

from __future__ import annotations

import ipaddress
import math
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from pyroute2.iproute import IPRoute
from pyroute2.netlink.rtnl.tcmsg import plugins as _queueing_disciplines

from ringlight.testbed.emulation.kernel.netlink import FRAME_BYTES
from ringlight.testbed.emulation.kernel.network_errors import NetworkError, failing

# pyroute2 knows pfifo but not bfifo, whose option is the same number, counted in bytes instead of packets.
_queueing_disciplines.setdefault("bfifo", _queueing_disciplines["pfifo"])

#: How late the kernel may look at a token bucket without losing rate, seconds.
TIMER_SLACK_S = 200e-6
#: Deadline of one process of tc, and what each request adds to it, seconds.
TC_S, REQUEST_S = 30.0, 1e-3
#: Hosts up to which each has a turn of its own on a link; of more than these, turns in all.
MOST_TURNS, TURNS = 64, 32
#: Most turns of pairs of hosts; a prime, so that pairs that share one are not of one sender or one receiver.
PAIRS = 257
#: Where packets' network header begins, for classic BPF (SKF_NET_OFF of linux/filter.h, of 32 bits).
_SKF_NET_OFF = 0xFFF00000


def bucket_bytes(rate_bps: float) -> int:
    """Return the depth of a token bucket in bytes for a rate in bits per second; see the module's text."""
    return math.ceil(FRAME_BYTES + rate_bps / 8 * TIMER_SLACK_S)


def htb_bucket_bytes(rate_bps: float) -> int:
    """Return the depth of an HTB class's bucket in bytes for a rate in bits per second: what passes while a
    timer is late.

    The bucket need not hold a frame, which HTB sends on credit. The least that tc would set is 1,600 bytes.
    """
    return max(1600, math.ceil(rate_bps / 8 * TIMER_SLACK_S))


def queue_bytes(rate_bps: float, queue_s: float) -> int:
    """Return the bytes that may wait at ``rate_bps`` bits per second for ``queue_s`` seconds, at least two
    frames."""
    return max(2 * FRAME_BYTES, math.ceil(rate_bps / 8 * queue_s))


def shape(
    netlink: IPRoute,
    index: int,
    rate_bps: float,
    queue_s: float,
    *,
    least_queue_bytes: int = 0,
) -> None:
    """Shape an interface's egress to ``rate_bps`` bits per second with one queue of ``queue_s`` seconds."""
    burst = bucket_bytes(rate_bps)
    with failing(f"interface {index}: rate {rate_bps:g} bit/s"):
        netlink.tc(
            "replace",
            "tbf",
            index,
            0x10000,
            rate=f"{round(rate_bps)}bit",
            burst=burst,
            limit=burst + max(queue_bytes(rate_bps, queue_s), least_queue_bytes),
        )


def shape_wavelengths(
    netlink: IPRoute,
    index: int,
    rate_bps: float,
    queue_s: float,
    count: int,
    *,
    least_queue_bytes: int = 0,
) -> None:
    """An interface as a fibre: ``count`` wavelengths of ``rate_bps`` bit/s, each with its own queue.

    HTB with one class for each, which may not borrow; a packet's priority names its class (1:1, 1:2, …), and
    one without is not held back. HTB lets a packet go as soon as the one before it is paid for: what is sent
    here should be single frames (:func:`set_burst`), or a burst of 64 KiB comes too early by its own
    length (measured: 0.5 s of a transfer at 25 Mbit/s took 0.97 of its time).
    """
    rate = f"{round(rate_bps)}bit"
    slack = htb_bucket_bytes(rate_bps)
    limit = max(queue_bytes(rate_bps, queue_s), least_queue_bytes)
    root = 0x10000
    with failing(f"interface {index}: {count} wavelengths of {rate}"):
        netlink.tc("replace", "htb", index, root, default=0)
        for number in range(1, count + 1):
            leaf = root + number
            netlink.tc(
                *("add-class", "htb", index, leaf),
                parent=root,
                rate=rate,
                burst=slack,
                cburst=slack,
                quantum=FRAME_BYTES,
            )
            netlink.tc(
                "add", "bfifo", index, (0x10 + number) << 16, parent=leaf, limit=limit
            )


#: By what flows take turns: whom a frame is from, whom it goes to, or both.
By = Literal["src", "dst", "pair"]


def shape_shared(
    ports: Iterable[tuple[str, float, float, By]], hosts: Sequence[str]
) -> None:
    """As :func:`shape`, with each link's rate shared evenly among the IPv4 ``hosts`` that waiting frames come
    from or go to, or among the pairs of hosts that they go between.

    ``ports``: interfaces of this namespace with their rates in bits per second, their queues in seconds, and
    by what flows take turns there.

    Userspace Open vSwitch has one first-come queue, in which long TCP flows divide a slow link by chance: HTB
    with a class for each, each with its own queue, borrowing in turns of one frame, gives each flow the same
    (tc has no other fair queue that every kernel brings). Measured with Reno, MTU 9000, 32.26 Mbit/s, a queue
    of 20 ms, 5 s, fastest flow over slowest: two flows 1.00 to 1.16 in one queue and 1.01 so; three flows
    1.34 to 1.37 and 1.007 to 1.010; the sum was the same (32.0 to 32.4 Mbit/s). Where a port leads to several
    GPUs, turns are of pairs: by source, a sender with two connections shared half of a link with a sender
    that had one, and rings in both directions over such links took up to 1.5 times as long as simulated.

    A real NIC takes from its queue pairs in turn, too. With one queue, sixteen GPUs that send to each other
    have flows that are behind at the end, when nobody makes up for them: an all-to-all of 32 MB a pair took
    1.13 of the time that its bytes need, by destination 1.07 (payload scale 25). Its turns are a frame long
    only if TCP hands it single frames (:func:`set_burst`): with bursts of up to 64 KiB, 42 ms at 12.5
    Mbit/s, the small messages of sixteen ranks waited for the large ones, and a training step took 135 s
    instead of 123 s (scenarios/examples/parallel_16.yaml; 119 s simulated).

    Acknowledgements go first, as they take no room. Behind the payload that goes the same way they come late
    for a connection that has little under way: with a queue of four frames on the uplink an iteration took
    19 % longer than simulated, and 2 % so (scenarios/disaggregation.yaml, arm ``contiguous``, job ``blue``).
    Payload that they overtake comes with an acknowledgement that is older by what was received meanwhile.
    Linux drops it (RFC 5961, 5.2) if that is more than the largest window that its sender was ever given, so
    workers give large ones first (containers/worker/windows.py). With small windows from the start 23 of 171
    drawn jobs were 10 to 62 % off, most of them for this, without a drop in any queue.

    On a large fabric some share a turn (:func:`_turns`): else classes grow with the square of the hosts
    (200,000 requests of tc for 256 GPUs, more than 30 s).

    All of it in one process of tc: two requests for each turn of every port are thousands on a fabric of
    sixteen GPUs, and each takes 1.4 ms of Python. Raises NetworkError.
    """
    chosen = list(ports)
    turns = {by: _turns(hosts, by) for _, _, _, by in chosen}
    lines = [
        line
        for name, rate_bps, queue_s, by in chosen
        for line in _shared(name, rate_bps, queue_s, *turns[by], late=by == "dst")
    ]
    _batch(
        lines, "rate of 1 port" if len(chosen) == 1 else f"rates of {len(chosen)} ports"
    )


def _batch(lines: Iterable[str], what: str) -> None:
    """Run all lines in one process of tc, in the calling thread's namespace. Raises NetworkError."""
    text = "".join(f"{line}\n" for line in lines)
    patience_s = TC_S + REQUEST_S * text.count("\n")
    try:
        with failing("tc"):
            done = subprocess.run(
                ["tc", "-batch", "-"],
                input=text,
                capture_output=True,
                text=True,
                timeout=patience_s,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise NetworkError(f"tc has not set the {what} in {patience_s:.0f} s") from None
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise NetworkError(f"the {what} cannot be set: {reason}")


def shape_peers(name: str, rate_bps: float, peers: int, most: int) -> None:
    """An interface of the thread's namespace with ``most`` queues for each of ``peers``, by HTB.

    Class ``1 + peer * most + k - 1`` passes k times ``rate_bps`` bits per second, which nobody may borrow. A
    packet's priority names its class, as in :func:`shape_wavelengths`, and what is sent here should be single
    frames. So a peer's rate changes without a word to the kernel's scheduler. Raises NetworkError.
    """
    lines = [f"qdisc replace dev {name} root handle 1: htb default 0"]
    for number in range(peers * most):
        rate = round(rate_bps * (number % most + 1))
        slack = htb_bucket_bytes(rate)
        lines.append(
            f"class add dev {name} parent 1: classid 1:{1 + number:x} "
            f"htb rate {rate}bit burst {slack} cburst {slack} quantum {FRAME_BYTES}"
        )
    _batch(lines, f"queues of {peers} peers at {name}")


#: Classic BPF that sends TCP segments without payload to class 1:2, which goes first: code, jumps, number. It
#: takes an IP header without options for granted. SYN, FIN and RST stay behind the payload before them.
_ACKNOWLEDGEMENTS = (
    f"48 0 0 {_SKF_NET_OFF + 9}",  # the protocol
    "21 0 10 6",
    f"48 0 0 {_SKF_NET_OFF + 33}",  # flags
    "69 8 0 7",
    f"40 0 0 {_SKF_NET_OFF + 2}",  # length of the packet, less IP's header
    "20 0 0 20",
    "7 0 0 0",
    f"48 0 0 {_SKF_NET_OFF + 32}",  # length of TCP's header
    "84 0 0 240",
    "116 0 0 2",
    "29 0 1 0",
    f"6 0 0 {0x10002}",
)


def _turns(hosts: Sequence[str], by: By) -> tuple[int, str]:
    """Return the number of turns, and the classic BPF by which ``tc`` finds the turn of a packet, from class
    1:3 on.

    The addresses are numbered from the lowest. A packet without a turn of its own shares those of others.
    """
    least, most = (
        extreme(int(ipaddress.IPv4Address(host)) for host in hosts)
        for extreme in (min, max)
    )
    count = most - least + 1
    if by == "pair":
        turns = count**2 if count**2 < PAIRS else PAIRS
    else:
        turns = count if count <= MOST_TURNS else TURNS

    def number(offset: int) -> list[tuple[int, int]]:
        # BPF_LD | BPF_W | BPF_ABS from the network header on, BPF_ALU | BPF_SUB.
        return [(0x20, _SKF_NET_OFF + offset), (0x14, least)]

    program = number(12) if by == "src" else number(16)
    if by == "pair":
        # Times ``count``, kept in the index register, plus the other number.
        program = [*number(12), (0x24, count), (0x07, 0), *number(16), (0x0C, 0)]
    # BPF_ALU | BPF_MOD, BPF_ALU | BPF_ADD, BPF_RET | BPF_A.
    program += [(0x94, turns), (0x04, 0x10003), (0x16, 0)]
    lines = [*_ACKNOWLEDGEMENTS, *(f"{code} 0 0 {k}" for code, k in program)]
    return turns, ",".join([str(len(lines)), *lines])


def _shared(
    name: str,
    rate_bps: float,
    queue_s: float,
    turns: int,
    classifier: str,
    *,
    late: bool,
) -> Iterator[str]:
    """Commands of tc for one interface. ``late``: its timers run beside a worker."""
    share_bps = max(8000, round(rate_bps / (turns + 1)))
    # A NIC's timers run beside its worker, on processors that all workers share: with a frame more it keeps
    # its rate there (two busy processors: 98.4 instead of 97.7 %). To tc a bare number is bytes.
    slack = bucket_bytes(rate_bps) if late else htb_bucket_bytes(rate_bps)
    ceiling = f"{round(rate_bps)}bit burst {slack} cburst {slack}"
    # Counted in bytes: half of a host's packets are acknowledgements, which take no room.
    limit = queue_bytes(rate_bps, queue_s)
    yield f"qdisc replace dev {name} root handle 1: htb default 2"
    yield f"class add dev {name} parent 1: classid 1:1 htb rate {ceiling}"
    for number in range(turns + 1):
        leaf, queue = f"1:{2 + number:x}", f"{0x10 + number:x}:"
        rate = f"rate {share_bps}bit ceil {ceiling} quantum {FRAME_BYTES} prio {min(number, 1)}"
        yield f"class add dev {name} parent 1:1 classid {leaf} htb {rate}"
        yield f"qdisc add dev {name} parent {leaf} handle {queue} bfifo limit {limit}"
    yield f"filter add dev {name} parent 1: protocol ip prio 1 bpf bytecode '{classifier}' flowid 1:2"
