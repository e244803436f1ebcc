"""Properties of the frame codec: any split, any command, any damage."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core.errors import RemoteProtocolError
from skylark.wire.command import SERIALIZE_BINARY, SERIALIZE_JSON, Command
from skylark.wire.frame import FrameBuffer, decode_frame, encode_frame
from tests.support.mutations import mutated_frames, recorded_frames, swallow

INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAMED = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


def commands(serialize_type: int) -> st.SearchStrategy[Command]:
    binary = serialize_type == SERIALIZE_BINARY
    return st.builds(
        Command,
        code=INT16 if binary else INT32,
        ext=st.none() | st.dictionaries(NAMED, NAMED, min_size=1)
        if binary
        else st.none() | st.dictionaries(TEXT, TEXT),
        flag=INT32,
        language=st.sampled_from(["JAVA", "CPP", "GO", "PYTHON", "RUST"]),
        opaque=INT32,
        remark=st.none() | (NAMED if binary else TEXT),
        serialize_label=st.none() if binary else st.just("JSON"),
        version=INT16 if binary else INT32,
        body=st.none() | st.binary(min_size=1, max_size=300),
        serialize_type=st.just(serialize_type),
    )


ANY_COMMAND = commands(SERIALIZE_JSON) | commands(SERIALIZE_BINARY)


@given(ANY_COMMAND)
@settings(max_examples=400, deadline=None)
def test_what_is_encoded_decodes_to_the_same_command(command: Command) -> None:
    assert decode_frame(encode_frame(command)) == command


@given(st.lists(ANY_COMMAND, min_size=1, max_size=5), st.data())
@settings(max_examples=200, deadline=None)
def test_any_split_of_the_stream_gives_the_same_commands(
    sent: list[Command], data: st.DataObject
) -> None:
    stream = b"".join(map(encode_frame, sent))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20).map(sorted))
    buffer = FrameBuffer()
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += buffer.feed(stream[start:end])
    assert received == sent
    assert buffer.pending_size == 0


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=4).map(sorted))
@settings(max_examples=500, deadline=None)
def test_garbage_breaks_the_stream_in_one_way_however_it_is_split(
    garbage: bytes, cuts: list[int]
) -> None:
    whole = FrameBuffer()
    expected = whole.feed(garbage)
    buffer = FrameBuffer()
    received: list[Command] = []
    try:
        for start, end in zip([0, *cuts], [*cuts, len(garbage)], strict=True):
            received += buffer.feed(garbage[start:end])
    except RemoteProtocolError:
        assert whole.error is not None
    assert received == expected
    assert (buffer.error is None) == (whole.error is None)


def test_30_000_damaged_frames_raise_one_typed_error_or_none() -> None:
    decoded = errors = 0
    for frame in mutated_frames(seed=20261115, count=30_000):
        frame_decoded, frame_errors = swallow(frame)
        decoded += frame_decoded
        errors += frame_errors
    # the damage must reach every layer: many frames break, many still decode
    assert decoded > 5_000
    assert errors > 5_000


def test_undamaged_frames_raise_nothing_at_the_frame_level() -> None:
    for frame in recorded_frames():
        assert swallow(frame)[0] == 1
