"""Quantities: what is written is what is meant, and what is not understood is refused with words that help."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo.units import UnitError, format_rate, format_size, format_time, parse_rate, parse_size, parse_time

pytestmark = pytest.mark.unit

PLAIN = st.floats(min_value=1e-3, max_value=999, allow_nan=False)
SHOWN = st.floats(min_value=1.0, max_value=1e15)
FOUR_DIGITS = 6e-4  # formats give four significant digits


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200Mb/s", 25e6),
        ("200 Mb/s", 25e6),
        ("200Mbit/s", 25e6),
        ("200Mbps", 25e6),
        ("45GB/s", 45e9),
        ("1kb/s", 125.0),
        ("1Kib/s", 128.0),
        ("1e3B/s", 1e3),
        (".5Gb/s", 62.5e6),
    ],
)
def test_a_rate_is_bits_or_bytes_as_its_letter_says(text: str, expected: float) -> None:
    assert parse_rate(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("5.4GB", 5.4e9), ("64KiB", 65536.0), ("1B", 1.0), (" 2 MiB ", 2.0 * 2**20)])
def test_a_size_has_decimal_or_binary_prefixes(text: str, expected: float) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("25ms", 0.025), ("0s", 0.0), ("330s", 330.0), ("2min", 120.0), ("7µs", 7e-6), ("7us", 7e-6)]
)
def test_a_time_has_its_unit(text: str, expected: float) -> None:
    assert parse_time(text) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["200", "200Mb", "Mb/s", "-1Mb/s", "0Mb/s", "1e999Gb/s", "nanMb/s", "200mb/s", "200 Mb/s x", "", 200, None]
)
def test_what_is_no_rate_is_refused(text: object) -> None:
    with pytest.raises(UnitError) as refusal:
        parse_rate(text)
    assert repr(text) in str(refusal.value)


@pytest.mark.parametrize("text", ["5", "5Gb", "-5GB", "0B", "5 gb", "5GB/s", 5.0])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(UnitError):
        parse_size(text)


@pytest.mark.parametrize("text", ["5", "-5ms", "5 sec", "ms", "5m", 5])
def test_what_is_no_time_is_refused(text: object) -> None:
    with pytest.raises(UnitError):
        parse_time(text)


@given(PLAIN, st.sampled_from(["", "k", "M", "G", "T"]))
def test_bits_are_an_eighth_of_bytes(value: float, prefix: str) -> None:
    assert parse_rate(f"{value!r}{prefix}B/s") == pytest.approx(8 * parse_rate(f"{value!r}{prefix}b/s"), rel=1e-12)


@given(SHOWN)
def test_a_rate_that_is_shown_reads_back(rate_Bps: float) -> None:
    assert parse_rate(format_rate(rate_Bps)) == pytest.approx(rate_Bps, rel=FOUR_DIGITS)


@given(SHOWN)
def test_a_size_that_is_shown_reads_back(size: float) -> None:
    assert parse_size(format_size(size)) == pytest.approx(size, rel=FOUR_DIGITS)


@given(st.floats(min_value=1e-9, max_value=1e6) | st.just(0.0))
def test_a_time_that_is_shown_reads_back(time_s: float) -> None:
    assert math.isclose(parse_time(format_time(time_s)), time_s, rel_tol=FOUR_DIGITS)


def test_quantities_are_shown_with_the_prefix_people_use() -> None:
    assert [format_rate(25e6), format_size(5.46e9), format_time(0.025), format_time(0)] == ["200 Mb/s", "5.46 GB", "25 ms", "0 s"]
