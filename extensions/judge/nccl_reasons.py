"""Reasons of claims on NCCL's tables that are not within their limits, with the trials."""

from __future__ import annotations

from collections.abc import Mapping

_UNSTATED = (
    "the hardware or the library is not stated completely, or the author suspects the cluster; its page "
    "has the figures side by side"
)

#: Reasons by the start of a claim's text.
REASONS: Mapping[str, str] = {
    "rings": (
        "seven of the rows are Azure's A100 table. At 128 and 256 MiB the model is up to a quarter too fast "
        "for it, and NCCL's source gives no cause ([limits](gpu-servers.md#limits)). Large sizes of the other"
        " rings are within 4 %, of this one from 1 GiB on within 5 %"
    ),
    "whole curves of A100": (
        "8 MiB on two servers of eight H100. NCCL's estimate prefers trees of sums there by little (101 µs, "
        "trees of LL128 112); with the stages of sums, which the estimate leaves out, the model has 203"
    ),
    "whole curves of all": "64 KiB on two GB10, see there",
    "a100_p4d": (
        "no source states the usable share of EFA at 100 Gbit/s. With that of InfiniBand the model is up to "
        "twice too fast between servers, and within 4 % on one"
    ),
    "gb10_2x1_200g_all_gather": (
        "NVIDIA's guide has 93 and 97 Gbit/s on the two halves of the port (NVIDIA/dgx-spark-playbooks#108), "
        "and the model 95, less the headers of small packets. Out of place the published time is 11 % longer "
        "than in place, for which no source states a cause"
    ),
    "gb10_2x1_200g_all_reduce": (
        "published times are two to three times those of NCCL's latencies; no source states the latencies of "
        "this NIC"
    ),
    "gb200_20rack": (
        "without NVLS NCCL chooses trees, and rings of LL128 from 4 GiB on (predicted with NVLS, as it was "
        "before its script was read, the difference was 55 %). The published times are like those of a ring "
        "with a latency of 5 ms and 432 GB/s of bus bandwidth; its NVLinks and NICs allow 720. By hand, "
        "version 2.26.2, which the table names, chooses trees, 38 % too fast. No source states its limit"
    ),
    "h100_2x1_tree": (
        "by NCCL's estimate of trees it is half as slow again. A trial with links and channels alone, without"
        " NCCL's factors for trees (0.92, 0.85 and corrections by size), left 17 %. But other tables' trees, "
        "which are too fast already, got faster by up to 12 points, and NCCL's source has the factors for all"
        " trees. So they stay"
    ),
    "h100_2x8_issue309b": _UNSTATED,
    "h100_8x8": _UNSTATED,
    "h20_1x8": _UNSTATED,
    "h20_2x8": (
        "H20 sums slower than H100 on the same NVLink: NICs and algorithm are those of two servers of H100, "
        "which are within. NCCL has one constant for both, and no source states another"
    ),
    "all-to-all": "no such table was found",
    "sound clusters": (
        "tables with a size from 128 MiB on whose time is more than a sixth above the model's: a flag is no "
        "better than the model"
    ),
}
