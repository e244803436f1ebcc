"""The three rules of sharding, against published values."""

from __future__ import annotations

import pytest

from skylark.spark.sink.sharding_rules import SHARD_RULES, consistent_hash, siphash24


@pytest.mark.parametrize(
    ("number", "count", "index"),
    [(1, 1, 0), (42, 57, 43), (0xDEAD10CC, 1, 0), (0xDEAD10CC, 666, 361), (256, 1024, 520)],
)
def test_consistent_hash_is_the_jump_hash(number: int, count: int, index: int) -> None:
    assert consistent_hash(number, count) == index


def test_siphash_agrees_with_the_vectors_of_its_authors() -> None:
    assert siphash24(bytes(range(15))) == 0xA129CA6149BE45E5
    assert siphash24(b"") == 0x726FDB47DD0E0E31
    assert siphash24(bytes(range(8))) == 0x93F5F5799A932462


def test_hash_is_that_of_java() -> None:
    # "polygenelubricants".hashCode() is the least of all integers, whose absolute value is tricky.
    assert SHARD_RULES["hash"]("polygenelubricants", 7) == 2
    assert [SHARD_RULES["hash"](f"order-{n}", 4) for n in range(6)] == [3, 2, 1, 0, 3, 2]


def test_every_rule_stays_within_the_queues() -> None:
    for rule in SHARD_RULES.values():
        indexes = {rule(f"key-{n}", 5) for n in range(200)}
        assert indexes == set(range(5))
