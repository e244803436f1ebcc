"""The Bloom filter; more positions, computed by Java, are in ``tests/golden/data/bloom.jsonl``."""

from __future__ import annotations

import pytest

from skylark.core.errors import ConfigError
from skylark.filter.bloom import BloomFilter, murmur3


@pytest.mark.spec("store.12.40")
def test_positions_of_a_subscription() -> None:
    bloom = BloomFilter(20, 32)
    assert (bloom.bit_count, bloom.hash_count) == (112, 3)
    assert bloom.positions("CID_A#TopicTest") == (20, 68, 27)


@pytest.mark.parametrize(
    ("data", "halves"),
    [
        (b"", (0, 0)),
        (b"hello", (0xCBD8A7B341BD9B02, 0x5B1E906A48AE1D19)),
        (b"hello, world", (0x342FAC623A5EBC8E, 0x4CDCBC079642414D)),
        (
            b"The quick brown fox jumps over the lazy dog.",
            (0xCD99481F9EE902C9, 0x695DA1A38987B6E7),
        ),
    ],
)
def test_murmur3(data: bytes, halves: tuple[int, int]) -> None:
    assert murmur3(data) == halves


def test_error_rate_is_about_what_was_asked_for() -> None:
    bloom = BloomFilter(20, 32)
    bits = {bit for number in range(32) for bit in bloom.positions(f"group{number}#T")}
    wrong = sum(bits.issuperset(bloom.positions(f"other{number}#T")) for number in range(1000))
    assert 100 < wrong < 300


def test_stored_positions_of_another_geometry_are_recognised() -> None:
    bloom = BloomFilter(20, 32)
    assert bloom.is_valid(112, [63, 89, 3])
    assert not bloom.is_valid(216, [184, 66, 51])
    assert not bloom.is_valid(112, [63, 89])


@pytest.mark.parametrize(("error_rate", "expected"), [(0, 32), (100, 32), (20, 0)])
def test_impossible_geometries(error_rate: int, expected: int) -> None:
    with pytest.raises(ConfigError):
        BloomFilter(error_rate, expected)
