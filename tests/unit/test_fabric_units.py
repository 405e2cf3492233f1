from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.fabric.units import (
    format_rate,
    format_size,
    format_time,
    parse_rate,
    parse_size,
    parse_time,
)


@pytest.mark.parametrize(
    ("text", "bps"),
    [
        ("40 Gbit/s", 40e9),
        ("40Gbps", 40e9),
        ("12.5 Mb/s", 12.5e6),
        ("1e3 bit/s", 1e3),
        ("9 kbit/s", 9e3),
        ("1.6 Tbit/s", 1.6e12),
    ],
)
def test_rates(text: str, bps: float) -> None:
    assert parse_rate(text) == pytest.approx(bps, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("25 ms", 0.025),
        ("10.5 ns", 10.5e-9),
        ("20us", 20e-6),
        ("20 µs", 20e-6),
        ("3 s", 3.0),
        ("0 s", 0.0),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("553.4 MB", 553_400_000),
        ("64 MiB", 64 * 2**20),
        ("1 KiB", 1024),
        ("7 B", 7),
        ("1.5 GiB", 3 * 2**29),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("parse", [parse_rate, parse_time, parse_size])
@pytest.mark.parametrize(
    "text", ["", "40", "-1 Gbit/s", "-1 s", "-1 B", "nan s", "inf bit/s", "1e B", "x"]
)
def test_what_is_not_a_quantity_is_quoted(parse: object, text: str) -> None:
    with pytest.raises(ValueError, match=repr(text).replace("'", ".")):
        parse(text)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("parse", "text"),
    [(parse_rate, "1e999 bit/s"), (parse_time, "1e999 s"), (parse_size, "1e999 MiB")],
)
def test_what_overflows_is_refused(parse: object, text: str) -> None:
    with pytest.raises(ValueError, match="too large"):
        parse(text)  # type: ignore[operator]


@given(st.floats(1e-8, 1e15))
def test_what_is_written_reads_back(value: float) -> None:
    assert parse_time(format_time(value)) == pytest.approx(value, rel=1e-3)
    assert parse_rate(format_rate(value)) == pytest.approx(value, rel=1e-3)
    assert parse_size(format_size(max(value, 1e3))) == pytest.approx(
        max(value, 1e3), rel=1e-3
    )
