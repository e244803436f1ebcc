"""Custom headers of the whole catalogue: round trips, and nothing but the typed error."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core.errors import HeaderFieldError
from skylark.wire.catalogue import CATALOGUE
from skylark.wire.fields import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    Header,
    decode_ext,
    encode_ext,
    header_fields,
)

HEADER_TYPES = sorted(
    {
        header_type
        for row in CATALOGUE.values()
        for header_type in (row.request_header, row.response_header)
        if header_type is not None
    },
    key=lambda header_type: header_type.__name__,
)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(max_size=20),
    "_parse_int32": st.integers(INT32_MIN, INT32_MAX),
    "_parse_int64": st.integers(INT64_MIN, INT64_MAX),
    "_parse_bool": st.booleans(),
}

WILD_TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            *("", "0", "-1", "+7", " 1", "1 ", "1.0", "1e3", "1_0", "0x1", "null", "nan"),
            *("true", "TRUE", "1", "\u0661", "\u00b2"),
            *("9" * 60, str(INT32_MAX + 1), str(INT64_MIN - 1)),
        ]
    ),
    st.integers().map(str),
)


@cache
def built(header_type: type[Header]) -> st.SearchStrategy[Header]:
    parts = {}
    for field in header_fields(header_type):
        values = VALUES[field.parse.__name__]
        optional = not field.required and field.default is None
        parts[field.attribute] = st.none() | values if optional else values
    return st.builds(header_type, **parts)


@cache
def wild_ext(header_type: type[Header]) -> st.SearchStrategy[dict[str, str]]:
    names = [field.wire_name for field in header_fields(header_type)]
    return st.dictionaries(st.sampled_from(names) | st.text(max_size=5), WILD_TEXT)


def test_all_header_types_are_covered() -> None:
    assert len(HEADER_TYPES) == 105


@pytest.mark.parametrize("header_type", HEADER_TYPES, ids=lambda t: t.__name__)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_round_trip(header_type: type[Header], data: st.DataObject) -> None:
    header = data.draw(built(header_type))
    ext = encode_ext(header)
    assert all(isinstance(value, str) for value in ext.values())
    assert decode_ext(header_type, ext) == header
    assert decode_ext(header_type, {**ext, "unknown": "entry"}) == header


@pytest.mark.parametrize("header_type", HEADER_TYPES, ids=lambda t: t.__name__)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_wild_maps_decode_or_raise_the_typed_error(
    header_type: type[Header], data: st.DataObject
) -> None:
    ext = data.draw(wild_ext(header_type))
    try:
        header = decode_ext(header_type, ext)
    except HeaderFieldError:
        return
    # What was understood has values of the declared kind: it can be written and read again.
    assert decode_ext(header_type, encode_ext(header)) == header
