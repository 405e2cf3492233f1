"""Moving light under jobs: which fibres lead to which switch when a job comes, so that it is on few switches.

GPUs' fibres end at ports of switches through optical switches. A switch has as many ports as GPUs, and some
to spare if the cluster has any. A job that fits a switch but finds no room on one gets it by moving fibres:
of idle GPUs to spare ports, then of running jobs, which go dark for a while. Only jobs that are whole on a
switch, and stay so elsewhere, make room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ringlight.extensions.cluster.simulation.placing import Placed

#: Jobs of a switch that are tried one after the other to make room.
MOST_MOVED = 8

#: A job that moves: its number, from and to which switch, and its GPUs.
Moved = tuple[int, int, int, int]
#: Idle GPUs whose fibres move: from and to which switch, and how many.
Lent = tuple[int, int, int]


@dataclass(frozen=True)
class Room:
    """Moves that bring a job onto few switches: the place where it is ``placed``, the jobs that ``move``, and
    idle fibres that are ``lent``.
    """

    placed: Placed
    move: tuple[Moved, ...] = ()
    lent: tuple[Lent, ...] = ()

    @property
    def fibres(self) -> int:
        """Fibres that are moved."""
        return sum(count for *_, count in self.move) + sum(
            count for *_, count in self.lent
        )


def room_for(
    requested: int,
    counts: Sequence[int],
    sizes: Sequence[int],
    spare: Sequence[int],
    whole_on: Mapping[int, Mapping[int, int]],
    *,
    running: bool,
) -> Room | None:
    """Return room on one switch, or on whole ones and one more, for a job of ``requested`` GPUs; None if
    there is none.

    ``counts``: free GPUs of each switch, ``sizes``: all, ``spare``: ports that have no fibre. ``whole_on``:
    the jobs that are whole on each switch, with their GPUs. ``running``: whether their fibres may be moved.
    The switch for which the fewest fibres move wins; of equal ones the first.
    """
    if requested > sum(counts):
        return None
    free, ports, left = list(counts), list(spare), requested
    placed: Placed = {}
    moves: list[Moved] = []
    lent: list[Lent] = []
    while left:
        best: tuple[int, list[Moved], list[Lent], int, int] | None = None
        for leaf in sorted(
            range(len(free)),
            key=lambda leaf: max(0, min(left, sizes[leaf]) - free[leaf]),
        ):
            here = min(left, sizes[leaf])
            # No fewer fibres move than there are GPUs missing, and switches come in that order.
            if best is not None and best[0] <= max(0, here - free[leaf]):
                break
            way = (
                None
                if leaf in placed
                else _way(leaf, here, free, ports, whole_on, moves, placed, running)
            )
            if way is not None:
                cost = sum(step[-1] for step in way[0]) + sum(
                    step[-1] for step in way[1]
                )
                if best is None or cost < best[0]:
                    best = (cost, *way, leaf, here)
        if best is None:
            return None
        _, new, lends, leaf, here = best
        for _, a, b, count in new:
            free[a] += count
            free[b] -= count
        for a, b, count in lends:
            free[a] -= count
            free[b] += count
            ports[a] += count
            ports[b] -= count
        moves += new
        lent += lends
        placed[leaf] = here
        free[leaf] -= here
        left -= here
    return Room(placed, tuple(moves), tuple(lent))


def _way(
    leaf: int,
    requested: int,
    free: Sequence[int],
    ports: Sequence[int],
    whole_on: Mapping[int, Mapping[int, int]],
    moved: Sequence[Moved],
    placed: Placed,
    running: bool,
) -> tuple[list[Moved], list[Lent]] | None:
    """Return how one switch gets ``requested`` free GPUs: jobs that move away, and idle GPUs that are lent to
    it.

    Returns None if there is no way.
    """
    missing = requested - free[leaf]
    if missing <= 0:
        return [], []
    lent: list[Lent] = []
    room = list(free)
    if ports[leaf]:
        open_ports = ports[leaf]
        for other in sorted(range(len(free)), key=lambda other: -free[other]):
            if (
                other != leaf
                and other not in placed
                and (n := min(open_ports, missing, room[other])) > 0
            ):
                lent.append((other, leaf, n))
                room[other] -= n
                open_ports -= n
                missing -= n
    if not missing:
        return [], lent
    if not running:
        return None
    gone = {job for job, *_ in moved}
    jobs = sorted((n, job) for job, n in whole_on[leaf].items() if job not in gone)
    elsewhere = [
        other for other in range(len(free)) if other != leaf and other not in placed
    ]
    # The smallest that is enough by itself, else the largest first.
    enough = [entry for entry in jobs if entry[0] >= missing]
    rest = [entry for entry in jobs if entry[0] < missing][::-1]
    for order in (enough[:2], rest):
        moves: list[Moved] = []
        short, left = missing, list(room)
        for n, job in order[:MOST_MOVED]:
            fits = [(left[other], other) for other in elsewhere if left[other] >= n]
            if fits:
                to = min(fits)[1]
                left[to] -= n
                moves.append((job, leaf, to, n))
                short -= n
                if short <= 0:
                    return moves, lent
    return None


def pays(
    room: Room,
    work_s: float,
    requested: int,
    scattered: float,
    together: float,
    dark_s: float,
    gpus: Callable[[int], int],
) -> bool:
    """Return whether a job gains more GPU seconds over its remaining time than all dark jobs lose.

    ``work_s``: remaining work in seconds at ideal speed. ``scattered`` and ``together``: the job's speeds
    without and with the move.
    """
    gained = requested * work_s * (1 / scattered - 1 / together)
    return gained > dark_s * (requested + sum(gpus(job) for job, *_ in room.move))
