"""A folder of the project's own that is called as one of Ringlight's is: neither is in the other's way."""


def busbw_over_algbw(ranks):
    """Of an all-reduce: 2(n-1)/n, as nccl-tests counts it."""
    return 2 * (ranks - 1) / ranks
