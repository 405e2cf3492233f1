"""Determine how long computation takes: by the rate of a device, or by a table of measurements."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ringlight.fabric.steps import BoolArray, FloatArray, IntArray
from ringlight.workloads.graph import Kind, Program, Workload


@dataclass(frozen=True)
class Device:
    """Computing device.

    ``peak_flops`` per second by the bytes of an element, dense matrix multiplication; ``efficiency``: the
    part of it that training reaches; ``memory_bytes_per_s``; ``source`` of each.
    """

    name: str
    peak_flops: Mapping[int, float]
    efficiency: float
    memory_bytes_per_s: float
    source: str

    def flops_per_s(self, element_bytes: int) -> float:
        """Return the FLOPs per second that training reaches.

        Raises ValueError, listing the known sizes, for another size of elements.
        """
        if element_bytes not in self.peak_flops:
            known = ", ".join(map(str, self.peak_flops))
            raise ValueError(
                f"{self.name}: no rate for elements of {element_bytes} bytes, only of {known}"
            )
        return self.peak_flops[element_bytes] * self.efficiency


_DEVICES = (
    Device(
        "v100", {2: 125e12, 4: 15.7e12}, 0.3, 900e9, "NVIDIA V100 datasheet, SXM2: FP16 tensor "
        "cores, FP32; efficiency: Shoeybi et al., arXiv:1909.08053, abstract (39 TFLOP/s, 30 % of peak)",
    ),
    Device(
        "a100", {2: 312e12, 4: 156e12}, 0.45, 2039e9, "NVIDIA A100 datasheet, 80 GB SXM: BF16, TF32 tensor "
        "cores; efficiency: Narayanan et al., SC 2021, section 5.1 (GPT-3 175B, 140 of 312 TFLOP/s)",
    ),
    Device(
        "h100", {2: 989.4e12, 4: 494.7e12}, 0.4, 3350e9, "NVIDIA H100 datasheet, SXM: BF16 and TF32 tensor "
        "cores; efficiency: Dubey et al., arXiv:2407.21783, table 4",
    ),
    Device(
        "h200", {2: 989.4e12, 4: 494.7e12}, 0.4, 4800e9,
        "NVIDIA H200 datasheet, SXM; efficiency as the H100's: assumed",
    ),
)  # fmt: skip

#: By name.
DEVICES = {device.name: device for device in _DEVICES}


def device_named(name: str) -> Device:
    """Return the device of a name. Raises ValueError, listing the known devices, for another name."""
    if name not in DEVICES:
        raise ValueError(f"no device {name}; there are {', '.join(DEVICES)}")
    return DEVICES[name]


def timed(workload: Workload, device: Device, element_bytes: int = 2) -> Workload:
    """Return the workload with seconds for each computation and memory operation that has none yet.

    FLOPs are divided by the device's rate for elements of ``element_bytes``, bytes by that of its memory.
    """
    rate, memory = device.flops_per_s(element_bytes), device.memory_bytes_per_s

    def seconds(program: Program) -> FloatArray:
        time_s = np.where(
            program.kind == Kind.MEMORY, program.bytes / memory, program.flops / rate
        )
        return _filled(program, time_s)

    return _with_seconds(workload, [seconds(program) for program in workload.programs])


def measured(workload: Workload, seconds: Mapping[str, float]) -> Workload:
    """Return the workload with the seconds of a table for operations that have none yet.

    These are computations and memory operations. ``seconds`` by the operation's name, "block 3 mlp backward",
    or without its number, "mlp backward"; of one rank's share of one micro-batch. Raises ValueError naming
    the first operation that is missing in the table.
    """
    by_name = np.full(len(workload.names), np.nan)
    for number, name in enumerate(workload.names):
        by_name[number] = seconds.get(name, seconds.get(without_number(name), np.nan))
    columns = [_filled(program, by_name[program.name]) for program in workload.programs]
    for program, column in zip(workload.programs, columns, strict=True):
        missing = np.flatnonzero(_takes_time(program) & np.isnan(column))
        if len(missing):
            raise ValueError(
                f"no seconds for {workload.names[int(program.name[missing[0]])]}; "
                f"the table has {', '.join(seconds)}"
            )
    return _with_seconds(workload, columns)


def without_number(name: str) -> str:
    """Return the name of an operation without the number of its block."""
    return re.sub(r"^(block|encoder) \d+ ", "", name)


def seconds_table(text: str) -> dict[str, float]:
    """Return the seconds by operation of a CSV text of lines ``operation,seconds``; a heading is skipped.

    Raises ValueError naming the line that has another form or repeats an operation.
    """
    table: dict[str, float] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, comma, value = (part.strip() for part in line.rpartition(","))
        if not line.strip() or (number == 1 and value == "seconds"):
            continue
        try:
            seconds = float(value)
        except ValueError:
            seconds = np.nan
        if not (comma and name and 0 <= seconds < np.inf):
            raise ValueError(
                f"line {number}: expected operation,seconds, not {line.strip()}"
            )
        if name in table:
            raise ValueError(f"line {number}: {name} stands there twice")
        table[name] = seconds
    return table


def scaled(workload: Workload, time: float, payload: float) -> Workload:
    """Return the workload that an emulation runs: seconds times ``time``, bytes sent divided by ``payload``.

    Sizes of collectives and messages are rounded up to multiples of 4 bytes, so they stay at least 4 if
    anything is sent. Raises ValueError for factors below or equal to 0, and naming the first operation
    without seconds.
    """
    if time <= 0 or payload <= 0:
        raise ValueError(
            f"scaled by time {time} and payload {payload}: both must be above 0"
        )
    programs = []
    for program in workload.programs:
        missing = np.flatnonzero(_takes_time(program) & np.isnan(program.seconds))
        if len(missing):
            raise ValueError(
                f"{workload.names[int(program.name[missing[0]])]} has no seconds to be scaled"
            )
        sent = ~_takes_time(program)
        size = np.where(sent, _scaled_bytes(program.bytes, payload), program.bytes)
        programs.append(replace(program, seconds=program.seconds * time, bytes=size))
    collectives = tuple(
        collective if collective.sizes is None
        else collective._replace(
            sizes=tuple(tuple(_scaled_bytes(np.array(row), payload).tolist()) for row in collective.sizes)
        )
        for collective in workload.collectives
    )  # fmt: skip
    return replace(workload, programs=tuple(programs), collectives=collectives)


def _scaled_bytes(size: IntArray, payload: float) -> IntArray:
    return np.asarray(np.ceil(size / (4 * payload)) * 4, dtype=np.int64)


def _takes_time(program: Program) -> BoolArray:
    return np.isin(program.kind, (Kind.COMPUTE, Kind.MEMORY))


def _filled(program: Program, seconds: FloatArray) -> FloatArray:
    """Return the seconds of a program, from ``seconds`` if an operation takes time and has none."""
    return np.where(
        _takes_time(program) & np.isnan(program.seconds), seconds, program.seconds
    )


def _with_seconds(workload: Workload, columns: list[FloatArray]) -> Workload:
    programs = zip(workload.programs, columns, strict=True)
    return replace(
        workload,
        programs=tuple(
            replace(program, seconds=column) for program, column in programs
        ),
    )
