"""Frame size and queues with which TCP fills the slow links of an emulated fabric.

A sender that loses a frame needs acknowledgements of later ones to notice it, and half of its window in
the queue to go on at full rate meanwhile. A queue of a few frames gives neither: the sender waits for a
time-out, and the link stands idle. Scaled down, a queue of some milliseconds can be that short. So frames
are made smaller first, which costs processor time and payload share but leaves the fabric as it was stated;
only where the smallest frames do not fit either is a queue made longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ringlight.fabric.topology import Fabric
from ringlight.fabric.units import format_rate, format_time

#: MTU in bytes: what the emulated interfaces have, and the least that is chosen. Headers take 0.7 % of a
#: link's rate at the first and 1.6 % at the second; at 1,500 they would take 4.4 %.
LARGEST_MTU_BYTES, SMALLEST_MTU_BYTES = 9000, 4000
#: Ethernet's header, which a link's shaper counts too.
ETHERNET_BYTES = 14
#: Bytes of headers in a packet: IPv4 (20) and TCP with time stamps (32).
IN_PACKET_BYTES = 52
#: Full frames that a queue must hold. Measured: one TCP stream over a link of 20 Mbit/s behind one of 100,
#: each with a queue of 10 ms, 0.8 s at a time on two busy processors: 2.8 frames of 9,000 bytes gave 81 to
#: 99 % of the setting, half of the times below 97 %; with three and more, a longer test gave 98.7 % and more
#: nine times in ten. Frames smaller than needed cost payload share and processor time.
QUEUE_FRAMES = 4
#: Seconds that a queue may last after it was made longer.
LONGEST_QUEUE_S = 0.5


def payload_share(mtu_bytes: int) -> float:
    """Return the payload over all bytes of a full packet: (MTU - 52) / (MTU + 14).

    These are the bytes that the emulated links count.
    """
    return (mtu_bytes - IN_PACKET_BYTES) / (mtu_bytes + ETHERNET_BYTES)


@dataclass(frozen=True)
class ShortQueue:
    """A link whose stated queue holds too few full frames of the usual size.

    ``index``: of the link in the fabric. ``frames``: how many its queue holds. ``stated_s`` and ``queue_s``:
    the queue as stated and as it will be, emulated seconds.
    """

    index: int
    frames: float
    stated_s: float
    queue_s: float


@dataclass(frozen=True)
class Frames:
    """``mtu_bytes``: IP packets of workers. ``short``: links that made it smaller, or have a longer queue.

    ``problem``: why TCP cannot fill some link even with the smallest frames, ``key: reason``. No testbed can
    emulate such a fabric; a simulation can still run it.
    """

    mtu_bytes: int = LARGEST_MTU_BYTES
    short: tuple[ShortQueue, ...] = ()
    problem: str | None = None

    def queue_s(self, index: int, stated_s: float) -> float:
        """Return the emulated seconds of queue of a link, whose stated queue is ``stated_s``."""
        return next(
            (queue.queue_s for queue in self.short if queue.index == index), stated_s
        )


def choose_frames(fabric: Fabric, time_scale: float, payload_scale: float) -> Frames:
    """Return the largest frames of which every queue of a packet switch holds ``QUEUE_FRAMES``.

    ``time_scale``: emulated seconds per real one; ``payload_scale``: real bytes per emulated one. A link
    without a packet switch does not count: its sender waits for its own queue and loses nothing there. A link
    on which even the smallest frames would need a queue of more than ``LONGEST_QUEUE_S``, and longer than its
    own, is the ``problem`` of the result.
    """
    switches = fabric.packet_switches.keys()
    queues = {
        index: (link.rate_bps / (time_scale * payload_scale), link.queue_s * time_scale)
        for index, link in enumerate(fabric.links)
        if link.a.node in switches or link.b.node in switches
    }
    least_bytes = min(
        (rate_bps / 8 * queue_s for rate_bps, queue_s in queues.values()),
        default=math.inf,
    )
    fitting = least_bytes / QUEUE_FRAMES - ETHERNET_BYTES
    mtu = int(min(LARGEST_MTU_BYTES, max(SMALLEST_MTU_BYTES, fitting)))
    short, problem = [], None
    for index, (rate_bps, queue_s) in queues.items():
        frames = rate_bps / 8 * queue_s / (LARGEST_MTU_BYTES + ETHERNET_BYTES)
        if frames >= QUEUE_FRAMES:
            continue
        needed_s = 8 * QUEUE_FRAMES * (mtu + ETHERNET_BYTES) / rate_bps
        if needed_s > max(LONGEST_QUEUE_S, queue_s):
            problem = problem or (
                f"links[{index}]: emulated at {format_rate(rate_bps)} it cannot be filled: a queue of "
                f"{QUEUE_FRAMES} frames of {mtu} bytes lasts {format_time(needed_s)}; lower the time or "
                "payload scale"
            )
            continue
        short.append(ShortQueue(index, frames, queue_s, max(queue_s, needed_s)))
    return Frames(mtu, tuple(short), problem)


def describe(fabric: Fabric, frames: Frames) -> list[str]:
    """Return a sentence for each link of ``frames.short``: what was wrong with its queue, and the choice."""
    sentences = []
    for short in frames.short:
        link = fabric.links[short.index]
        longer = (
            f" and a queue of {format_time(short.queue_s)}"
            if short.queue_s > short.stated_s
            else ""
        )
        sentences.append(
            f"links[{short.index}], {link.a} - {link.b}: its queue of {format_time(short.stated_s)} as "
            f"emulated holds {short.frames:.1f} frames of {LARGEST_MTU_BYTES} bytes, too few for TCP to fill "
            f"the link; emulated with frames of {frames.mtu_bytes} bytes{longer}"
        )
    return sentences
