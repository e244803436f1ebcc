"""SQL92 and Bloom filters choose what Java's choose.

``data/sql92.jsonl`` and ``data/bloom.jsonl`` were answered by the classes of RocketMQ 5.5.0 through
``tests/interop/java/FilterTable.java``. A line of the first has an expression, some messages (their
properties) and a result for each: true, false, null, or "error" where Java throws; no results at
all if the expression does not compile. ``make interop PART=filter`` asks Java again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skylark.filter.bloom import BloomFilter
from skylark.filter.errors import FilterSyntaxError
from skylark.filter.java_values import EvaluationError
from skylark.filter.sql_eval import SqlFilter, compile_sql
from skylark.wire.properties import encode_properties

DATA = Path(__file__).parent / "data"


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").split("\n") if line]


def result(compiled: SqlFilter, properties: dict[str, str]) -> bool | str | None:
    try:
        return compiled.evaluate(properties.get)
    except EvaluationError:
        return "error"


def cases() -> Iterator[tuple[SqlFilter, dict[str, str], Any]]:
    for row in rows("sql92.jsonl"):
        if row["results"] is not None:
            compiled = compile_sql(row["sql"])
            for properties, expected in zip(row["properties"], row["results"], strict=True):
                yield compiled, properties, expected


def test_the_table_is_rich() -> None:
    table = rows("sql92.jsonl")
    assert len(table) == 579
    assert sum(row["results"] is None for row in table) == 154
    outcomes = Counter(str(expected) for _, _, expected in cases())
    assert min(outcomes[name] for name in ("True", "False", "None", "error")) > 300


@pytest.mark.parametrize("row", rows("sql92.jsonl"), ids=lambda row: f"{row['sql']!a:.60}")
@pytest.mark.spec("broker.13.13")
def test_results(row: dict[str, Any]) -> None:
    if row["results"] is None:
        with pytest.raises(FilterSyntaxError) as caught:
            compile_sql(row["sql"])
        assert caught.value.code == 23
        assert caught.value.position is not None
        assert 0 <= caught.value.position <= len(row["sql"])
    else:
        compiled = compile_sql(row["sql"])
        assert [result(compiled, each) for each in row["properties"]] == row["results"]


def test_a_message_matches_only_if_the_result_is_true() -> None:
    for compiled, properties, expected in cases():
        assert compiled.matches(properties) is (expected is True)


def test_a_stored_record_gives_the_same_result() -> None:
    for compiled, properties, expected in cases():
        if "" not in properties.values():  # empty values are not stored
            raw = encode_properties(properties).encode()
            assert compiled.matches_raw(raw) is (expected is True)


@pytest.mark.parametrize("row", rows("bloom.jsonl"), ids=lambda row: f"{row['key']!a:.40}")
def test_bloom_positions(row: dict[str, Any]) -> None:
    bloom = BloomFilter(row["error_rate"], row["expected"])
    assert bloom.bit_count == row["bits"]
    assert list(bloom.positions(row["key"])) == row["positions"]
