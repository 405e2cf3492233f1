"""All-to-all as steps of arrays: of n ranks, chunk i * n + j is what rank i has for rank j.

The vector is that of all ranks together, n * n chunks. A rank holds the chunks of its row and gets those of
its column; what it passes on for others has its own chunk there, too. Nothing but the chunks' sizes tells an
all-to-all-v from an all-to-all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ringlight.fabric.schedules import nearest_group
from ringlight.fabric.steps import Step, Steps, frozen


def _step(
    sources: npt.ArrayLike, destinations: npt.ArrayLike, chunks: npt.ArrayLike
) -> Step:
    first = frozen(chunks)
    return Step(
        frozen(sources),
        frozen(destinations),
        first,
        frozen(np.ones(len(first))),
        "replace",
    )


def direct(n: int) -> Steps:
    """Return one step, in which each rank sends (n-1)/n of its row to all others at once, as NCCL does.

    Its n (n - 1) transfers are in memory at the same time: 0.5 GB for 4,096 ranks, which :func:`pairwise`
    does not need.
    """

    def make() -> Iterator[Step]:
        if n > 1:
            sources = np.repeat(np.arange(n), n - 1)
            destinations = (sources + np.tile(np.arange(1, n), n)) % n
            yield _step(sources, destinations, sources * n + destinations)

    return Steps("direct", n, n * n, min(n - 1, 1), make)


def pairwise(n: int) -> Steps:
    """Return steps of one peer at a time.

    In step k = 1 to n - 1 each rank sends to rank + k and receives from rank - k. (n-1)/n of a row, no
    receiver ever has two senders, and unequal chunks make a rank wait for the largest of each step.
    """
    ranks = frozen(np.arange(n))

    def make() -> Iterator[Step]:
        for k in range(1, n):
            to = (ranks + k) % n
            yield _step(ranks, to, ranks * n + to)

    return Steps("pairwise", n, n * n, n - 1, make, step_by_step=True)


def bruck(n: int) -> Steps:
    """Return ceil(log2 n) steps: what has to go d ranks on goes 2^k of them in step k if bit k of d is set.

    Every step carries about half a row: more bytes than :func:`direct`, fewer messages (Bruck et al., 1997).
    """
    depth = (n - 1).bit_length()
    origins = np.arange(n)[:, None]

    def make() -> Iterator[Step]:
        for k in range(depth):
            away = np.arange(n)
            away = away[away >> k & 1 == 1]
            sources = (origins + away % (1 << k)) % n
            chunks = origins * n + (origins + away) % n
            yield _step(
                sources.ravel(), ((sources + (1 << k)) % n).ravel(), chunks.ravel()
            )

    return Steps("bruck", n, n * n, depth, make, step_by_step=True)


def hierarchical(n: int, group: int | None = None) -> Steps:
    """Return two steps, within servers of ``group`` neighbouring ranks and then between the servers.

    First each rank gives each other rank of its server all chunks for the ranks that have that other rank's
    place in any server. Then ranks of equal place exchange. So m messages of m chunks go from one server to
    another, while :func:`direct` has m*m of one. The default of ``group`` is that of a hierarchical ring.
    Raises ValueError when the group does not divide ``n``.
    """
    m = nearest_group(n) if group is None else group
    if m < 1 or n % m:
        raise ValueError(
            f"{n} ranks cannot have a hierarchical all-to-all in groups of {m}, which must divide {n}"
        )
    servers = n // m

    def make() -> Iterator[Step]:
        if m > 1:
            server, place, other, far = np.indices((servers, m, m, servers)).reshape(
                4, -1
            )
            sources, destinations = server * m + place, server * m + other
            yield _some(
                place != other, sources, destinations, sources * n + far * m + other
            )
        if servers > 1:
            server, place, far, origin = np.indices((servers, m, servers, m)).reshape(
                4, -1
            )
            sources, destinations = server * m + place, far * m + place
            yield _some(
                server != far,
                sources,
                destinations,
                (server * m + origin) * n + destinations,
            )

    return Steps("hierarchical", n, n * n, (m > 1) + (servers > 1), make)


def _some(which: npt.NDArray[np.bool_], *columns: npt.NDArray[np.int64]) -> Step:
    sources, destinations, chunks = (column[which] for column in columns)
    return _step(sources, destinations, chunks)
