from __future__ import annotations

import pytest

from accel_ops.byte_sizes import convert_bytes, convert_file_size_to_int
from accel_state.errors import ConfigError


@pytest.mark.parametrize(
    ("size", "num_bytes"),
    [
        (0, 0), (7, 7), (19071535104.0, 19071535104), (1.9, 1),
        ("0GB", 0), ("12", 12), ("12B", 12), ("5MB", 5 * 10**6), ("10GB", 10**10),
        ("2TB", 2 * 10**12),
        ("1KB", 1000), ("1KiB", 1024), ("10GiB", 10 * 2**30), ("30GIB", 30 * 2**30), ("3 MiB", 3 * 2**20),
        ("1.5GiB", 3 * 2**29), ("2TiB", 2 * 2**40), ("10gb", 10**10), ("10 GB ", 10**10),
    ],
)  # fmt: skip
def test_sizes_are_read_as_written(size, num_bytes):
    assert convert_file_size_to_int(size) == num_bytes


@pytest.mark.parametrize(
    "size", ["", "GB", "-1GB", "1XB", "1G", "1iB", "1.2.3GB", "five GB", "1e9", "1 000MB", "1GBs"]
)
def test_other_strings_are_refused(size):
    with pytest.raises(ConfigError, match="is not a size. Write a number and a unit"):
        convert_file_size_to_int(size)


@pytest.mark.parametrize("size", ["10Gb", "1 Mb", "3Kib"])
def test_units_that_may_be_bits_are_refused_with_the_two_ways_to_write_bytes(size):
    with pytest.raises(ConfigError, match=r"may mean bits or bytes. Write `[KMG]B` or `[KMG]iB`"):
        convert_file_size_to_int(size)


@pytest.mark.parametrize("size", [-1, True, -0.5, float("nan"), float("inf"), None, b"1GB"])
def test_what_is_no_size_at_all_is_refused(size):
    with pytest.raises(ConfigError, match="is not a size"):
        convert_file_size_to_int(size)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"), (512, "512 bytes"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (84.21 * 2**20, "84.21 MiB"),
        (3 * 2**30, "3.0 GiB"), (2**40, "1.0 TiB"), (5000 * 2**40, "5000.0 TiB"),
    ],
)  # fmt: skip
def test_convert_bytes_writes_for_people(size, text):
    assert convert_bytes(size) == text
