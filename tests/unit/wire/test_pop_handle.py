"""Receipt handles and the texts of pop answers, as in the recording of a Java client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.core.errors import HeaderFieldError, LocalProtocolError
from skylark.wire import pop_handle
from skylark.wire.pop_handle import PopHandle, decode_handle

RECORDED = "0 1794710831750 10000 0 0 broker-a 1 2"


def test_a_recorded_handle_is_read_and_written() -> None:
    handle = decode_handle(RECORDED)
    assert handle == PopHandle(0, 1794710831750, 10000, 0, "0", "broker-a", 1, 2)
    assert str(handle) == RECORDED
    assert not handle.is_ordered
    assert handle.visible_at_ms == 1794710841750


def test_old_handles_lack_the_offset_and_those_of_proxies_have_a_position() -> None:
    old = decode_handle("7 1 2 999 1 b 3")
    assert (old.queue_offset, old.log_offset, old.is_ordered) == (-1, -1, True)
    assert str(old) == "7 1 2 999 1 b 3"
    proxy = decode_handle("0 1700000000000 60000 3 0 broker-a 1 42 8191")
    assert (proxy.queue_offset, proxy.log_offset) == (42, 8191)
    assert str(proxy) == "0 1700000000000 60000 3 0 broker-a 1 42 8191"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0 1 2 3 0 b",
        " 0 1 2 3 0 b 1 2",
        "0 1 2 3 0 b 1 2 ",
        "0  1 2 3 0 b 1 2",
        "0 1 2 3 3 b 1 2",
        "0 1 2 3 0  1 2",
        "a 1 2 3 0 b 1 2",
        "1_0 1 2 3 0 b 1 2",
        "٣ 1 2 3 0 b 1 2",
        "0 1 2 3 0 b 1 2\n",
        "0 1 2 3 0 b 9999999999 2",
        "0 9223372036854775808 2 3 0 b 1 2",
        "0 1 2 3 0 b 1 2 3 4",
        f"0 1 2 3 0 {'b' * 256} 1 2",
        "9" * 1_000_000,
    ],
)
def test_a_handle_of_another_form_is_refused_with_a_short_remark(text: str) -> None:
    with pytest.raises(HeaderFieldError, match="is not a receipt handle") as refused:
        decode_handle(text)
    assert refused.value.field == "extraInfo"
    assert len(str(refused.value)) < 300


@given(
    st.builds(
        PopHandle,
        *[st.integers(-(10**17), 10**17)] * 3,
        st.integers(-99, 10**8),
        st.sampled_from("012"),
        st.text(st.characters(exclude_characters=" "), min_size=1, max_size=255),
        st.integers(-1, 10**8),
        st.integers(0, 10**17),
        st.integers(-1, 10**17),
    )
)
def test_what_is_written_is_read(handle: PopHandle) -> None:
    assert decode_handle(str(handle)) == handle


def test_the_kind_says_which_topic_a_message_came_from() -> None:
    for kind, topic in (("0", "T"), ("1", "%RETRY%G_T"), ("2", "%RETRY%G+T")):
        assert pop_handle.kind_of(topic) == kind
        assert pop_handle.real_topic(kind, "T", "G") == topic


def test_the_texts_of_a_recorded_answer() -> None:
    starts, offsets = "0 1 0;0 0 0", "0 1 0,1,2;0 0 0,1,2"
    assert pop_handle.decode_start_offsets(starts) == {("0", 1): 0, ("0", 0): 0}
    assert pop_handle.decode_message_offsets(offsets) == {("0", 1): [0, 1, 2], ("0", 0): [0, 1, 2]}
    assert pop_handle.encode_start_offsets({("0", 1): 0, ("0", 0): 0}) == starts
    assert pop_handle.encode_message_offsets({("0", 1): [0, 1, 2], ("0", 0): [0, 1, 2]}) == offsets


def test_counts_stand_per_message_and_per_queue() -> None:
    counts: dict[pop_handle.QueueKey | pop_handle.OffsetKey, int]
    counts = {("0", 1, 40): 2, ("0", 1): 1, ("2", 0): 3}
    text = "0 qo1%40 2;0 1 1;2 0 3"
    assert pop_handle.encode_order_counts(counts) == text
    assert pop_handle.decode_order_counts(text) == counts


def test_absent_texts_have_no_entries() -> None:
    for text in (None, ""):
        assert pop_handle.decode_start_offsets(text) == {}
        assert pop_handle.decode_message_offsets(text) == {}
        assert pop_handle.decode_order_counts(text) == {}


def test_entries_that_stand_twice_or_are_malformed_are_refused() -> None:
    for text in ("0 1 0;0 1 5", "0 1", "0 1 0;", "x 1 0", "0 1 1,", "0 qo1 1"):
        for decode in (
            pop_handle.decode_start_offsets,
            pop_handle.decode_message_offsets,
            pop_handle.decode_order_counts,
        ):
            with pytest.raises(HeaderFieldError, match="is not an entry"):
                decode(text)


def test_a_queue_without_messages_has_no_text() -> None:
    with pytest.raises(LocalProtocolError):
        pop_handle.encode_message_offsets({("0", 1): []})
