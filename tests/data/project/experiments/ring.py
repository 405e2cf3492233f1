"""A folder of the project's own that is called as one of Ringlight's is: neither is in the other's way."""


def busbw_over_algbw(ranks):
    """Return 2(n-1)/n, the factor of an all-reduce in nccl-tests."""
    return 2 * (ranks - 1) / ranks
