"""Seconds: of devices and tables, and scaled for an emulation."""

from __future__ import annotations

import numpy as np
import pytest

from ringlight.workloads.devices import (
    DEVICES,
    device_named,
    measured,
    scaled,
    seconds_table,
    timed,
)
from ringlight.workloads.graph import Collective, Kind, Workload
from ringlight.workloads.graph_writer import Book, Writer

A100 = DEVICES["a100"]


def mixed() -> Workload:
    """A computation in FLOPs, one in seconds, a memory operation, a message and a collective on two ranks."""
    book = Book()
    group = book.group([0, 1])
    programs = []
    for rank in (0, 1):
        writer = Writer(book)
        writer.compute("block 3 mlp forward", flops=312e12)
        writer.compute("block 12 mlp forward", seconds=0.5)
        writer.memory("optimiser", 2039 * 10**9)
        if rank == 0:
            writer.send("pp activations", 10, 0)
        else:
            writer.receive("pp activations", 10, 0)
        matrix = ((0, 1000), (6, 0))
        writer.collective(
            "ep dispatch", Collective("all-to-all-v", sizes=matrix), 1000, 0
        )
        programs.append(writer.done())
    return book.workload("mixed", programs, [0, 1], [[group], [group]], [[1], [0]])


def test_a_device_fills_in_what_states_no_seconds() -> None:
    seconds = timed(mixed(), A100).programs[0].seconds
    assert seconds[:3] == pytest.approx([1 / 0.45, 0.5, 1.0])
    assert np.isnan(seconds[3:]).all()
    with pytest.raises(
        ValueError, match="a100: no rate for elements of 1 bytes, only of 2, 4"
    ):
        timed(mixed(), A100, element_bytes=1)
    with pytest.raises(ValueError, match="no device a10; there are v100, a100"):
        device_named("a10")


def test_a_measured_table_fills_in_by_name_with_or_without_the_blocks_number() -> None:
    table = seconds_table("operation,seconds\nmlp forward,0.25\n\noptimiser,1e-3\n")
    assert measured(mixed(), table).programs[1].seconds[:3].tolist() == [
        0.25,
        0.5,
        1e-3,
    ]
    closer = measured(mixed(), table | {"block 3 mlp forward": 0.125})
    assert closer.programs[0].seconds[0] == 0.125
    with pytest.raises(
        ValueError, match="no seconds for optimiser; the table has mlp forward"
    ):
        measured(mixed(), {"mlp forward": 1.0})


@pytest.mark.parametrize(
    "line",
    ["mlp forward", "mlp forward,fast", "mlp forward,-1", ",1", "head,inf", "a,1\na,2"],
)
def test_a_line_that_is_none_is_named(line: str) -> None:
    number = 1 + line.count("\n")
    with pytest.raises(ValueError, match=f"line {number + 1}: "):
        seconds_table(f"operation,seconds\n{line}")


def test_an_emulation_takes_longer_over_less() -> None:
    workload = scaled(timed(mixed(), A100), 10, 100)
    program = workload.programs[0]
    assert program.seconds[:3] == pytest.approx([10 / 0.45, 5.0, 10.0])
    assert program.bytes[2] == 2039 * 10**9
    sizes = program.bytes[program.kind != Kind.MEMORY]
    assert sizes.tolist() == [0, 0, 4, 12]
    assert workload.collectives[0].sizes == ((0, 12), (4, 0))
    with pytest.raises(
        ValueError, match="block 3 mlp forward has no seconds to be scaled"
    ):
        scaled(mixed(), 10, 100)
    with pytest.raises(ValueError, match="both must be above 0"):
        scaled(timed(mixed(), A100), 0, 1)
