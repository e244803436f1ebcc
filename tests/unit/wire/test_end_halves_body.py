"""The bodies of END_HALVES: round trips, and bytes that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.core.errors import RemoteProtocolError
from skylark.wire.end_halves_body import (
    PLACE,
    PLACES_MAX,
    HalfPlace,
    decode_codes,
    decode_places,
    encode_codes,
    encode_places,
)

offsets = st.integers(0, (1 << 63) - 1)
places = st.builds(
    HalfPlace, offsets, offsets, st.text("0123456789ABCDEF", min_size=32, max_size=32)
)


def test_the_layout() -> None:
    raw = encode_places([HalfPlace(1, 2, "A" * 32)])
    assert raw == b"\0\0\0\0\0\0\0\1" + b"\0\0\0\0\0\0\0\2" + b"A" * 32
    assert encode_codes([0, 604]) == b"\0\0\x02\x5c"


@given(st.lists(places, min_size=1, max_size=20))
def test_places_survive_a_round_trip(wanted: list[HalfPlace]) -> None:
    assert decode_places(encode_places(wanted)) == wanted


@pytest.mark.parametrize(
    "body",
    [b"", b"x" * 47, bytes(PLACE.size) + b"x", bytes((PLACES_MAX + 1) * PLACE.size), b"\xff" * 48],
)
def test_bytes_that_are_not_a_list_of_half_messages(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_places(body)


def test_codes_may_end_early() -> None:
    assert decode_codes(encode_codes([0, 1]), 3) == [0, 1]
    for body in (None, b"", b"\0", encode_codes([0, 0, 0, 0])):
        with pytest.raises(RemoteProtocolError):
            decode_codes(body, 3)
