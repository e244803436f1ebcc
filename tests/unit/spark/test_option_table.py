"""The option tables of source and sink agree with the Structs that get the values."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from skylark.spark.option_table import Option, option_fields
from skylark.spark.sink import sink_options
from skylark.spark.source import source_options


@pytest.mark.parametrize(
    ("table", "struct"),
    [
        (source_options.OPTIONS, source_options.SourceOptions),
        (sink_options.OPTIONS, sink_options.SinkOptions),
    ],
    ids=["source", "sink"],
)
def test_each_option_has_a_separate_field(
    table: tuple[Option, ...], struct: type[msgspec.Struct]
) -> None:
    named = Counter(option.field for option in table if option.field is not None)
    assert len(named) > 20
    assert set(named) <= set(struct.__struct_fields__)
    assert set(named.values()) == {1}


def test_values_are_returned_by_field() -> None:
    table = (Option("maxInFlight", int, field="in_flight_max"), Option("topic", str))
    assert option_fields({"maxInFlight": 3, "topic": "T"}, table) == {"in_flight_max": 3}
    assert option_fields({}, table) == {}
