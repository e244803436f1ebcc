"""What is changed in properties, and where delayed messages go."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.send.message_policy import (
    TIMER_NAMES,
    Diverter,
    delay_level,
    is_plain,
    slot_time,
)
from skylark.core.errors import BrokerError
from skylark.core.names import SCHEDULE_TOPIC, TIMER_TOPIC
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutStatus
from skylark.wire.properties import encode_properties, parse_properties


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a\x011\x02", True),
        ("a\x011\x02b\x012\x02", True),
        ("MY_DELAY\x011\x02DELAYED\x012\x02", True),
        ("a\x01DELAY\x02", True),
        ("a\x01b\x01c\x02", True),  # a value may hold the other separator
        ("", False),
        ("a\x011", False),
        ("a\x01\x02", False),
        ("b\x011\x02a\x01\x02", False),
        ("\x01x\x02", False),
        ("a\x011\x02\x01x\x02", False),
        ("\x02", False),
        ("a\x011\x02\x02", False),
        ("word\x02", False),
        ("a\x011\x02word\x02", False),
        ("DELAY\x011\x02", False),
        ("a\x011\x02TRAN_MSG\x01true\x02", False),
        ("CLUSTER\x01c\x02", False),
    ],
)
def test_plain(text: str, plain: bool) -> None:
    assert is_plain(text) == plain


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab\x01\x02", max_size=12))
def test_a_plain_string_reads_the_same_with_more_behind_it(text: str) -> None:
    whole = text + "z\x01end\x02"
    if is_plain(text):
        assert parse_properties(whole) == {**parse_properties(text), "z": "end"}
        items = [item.partition("\x01") for item in text.split("\x02")[:-1]]
        assert all(name and value for name, _, value in items)
    elif text:
        normal = encode_properties(parse_properties(text))
        assert normal != text or not normal


@pytest.mark.parametrize(("text", "level"), [("3", 3), ("-1", -1), ("+2", 2), ("0", 0)])
def test_level(text: str, level: int) -> None:
    assert delay_level({"DELAY": text}) == level
    assert delay_level({}) == 0


@pytest.mark.parametrize("text", ["x", "1.5", "-", "1" * 11, "\u00b2"])
def test_a_level_that_is_no_number(text: str) -> None:
    with pytest.raises(BrokerError, match="For input string"):
        delay_level({"DELAY": text})


def test_a_level_leads_to_its_queue() -> None:
    draft, properties = Draft("T", 5, b"x"), {"DELAY": "99", "TIMER_DELAY_SEC": "3"}
    assert Diverter(18).divert(draft, properties) is None
    assert (draft.topic, draft.queue_id) == (SCHEDULE_TOPIC, 17)
    assert properties == {"DELAY": "18", "REAL_TOPIC": "T", "REAL_QID": "5"}


@pytest.mark.parametrize("name", TIMER_NAMES)
def test_timer_messages(name: str) -> None:
    draft = Draft("T", 5, b"x")
    assert Diverter(18).divert(draft, {name: "3"}) is PutStatus.WHEEL_TIMER_NOT_ENABLE
    # What comes out of the timer has its time with it, and what is rolled stays in its topic.
    assert Diverter(18).divert(draft, {name: "3", "TIMER_OUT_MS": "1"}) is None
    assert Diverter(18).divert(Draft(TIMER_TOPIC, 0, b"x"), {name: "3"}) is None
    assert (draft.topic, draft.queue_id) == ("T", 5)


class FakeTimers:
    """A timer of one second at a fixed time, with one slot that is full."""

    precision_ms = 1_000
    delay_max_ms = 259_200_000

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def is_full(self, slot_time_ms: int) -> bool:
        return slot_time_ms == 1_700_000_077_000


@pytest.mark.spec("store.12.38")
@pytest.mark.parametrize(
    ("properties", "slot"),
    [
        ({"TIMER_DELIVER_MS": "1700000010000"}, 1_700_000_009_000),
        ({"TIMER_DELIVER_MS": "1700000010001"}, 1_700_000_010_000),
        ({"TIMER_DELIVER_MS": "1700000000001"}, 1_700_000_000_000),
        ({"TIMER_DELAY_MS": "1"}, 1_700_000_000_000),
        ({"TIMER_DELAY_SEC": "10", "TIMER_DELAY_MS": "x"}, 1_700_000_009_000),
        ({"TIMER_DELAY_MS": "2500", "TIMER_DELIVER_MS": "x"}, 1_700_000_002_000),
        ({"TIMER_DELAY_SEC": "259200", "DELAY": "0"}, 1_700_259_199_000),
        ({"TIMER_DELAY_SEC": "5", "TIMER_DEL_UNIQKEY": "U"}, 1_700_000_004_000),
    ],
)
def test_timed_messages(properties: dict[str, str], slot: int) -> None:
    draft, given = Draft("T", 5, b"x"), dict(properties)
    assert Diverter(18, FakeTimers()).divert(draft, properties) is None
    assert (draft.topic, draft.queue_id) == (TIMER_TOPIC, 0)
    added = {"TIMER_OUT_MS": str(slot), "REAL_TOPIC": "T", "REAL_QID": "5"}
    assert properties == {**given, **added}


@pytest.mark.parametrize(
    ("properties", "status"),
    [
        ({"TIMER_DELAY_SEC": "259201"}, PutStatus.WHEEL_TIMER_MSG_ILLEGAL),
        ({"TIMER_DELAY_SEC": "soon"}, PutStatus.WHEEL_TIMER_MSG_ILLEGAL),
        ({"TIMER_DELAY_MS": "1.5"}, PutStatus.WHEEL_TIMER_MSG_ILLEGAL),
        ({"TIMER_DELIVER_MS": "9223372036854775808"}, PutStatus.WHEEL_TIMER_MSG_ILLEGAL),
        ({"TIMER_DELIVER_MS": "\u0661"}, PutStatus.WHEEL_TIMER_MSG_ILLEGAL),
        ({"TIMER_DELIVER_MS": "5", "TIMER_DEL_UNIQKEY": "U"}, PutStatus.WHEEL_TIMER_MSG_ILLEGAL),
        ({"TIMER_DELIVER_MS": "1700000078000"}, PutStatus.WHEEL_TIMER_FLOW_CONTROL),
        ({"TIMER_DELIVER_MS": "1700000000000"}, None),
        ({"TIMER_DELAY_SEC": "-3"}, None),
    ],
)
def test_timed_messages_that_stay(properties: dict[str, str], status: PutStatus | None) -> None:
    draft, given = Draft("T", 5, b"x"), dict(properties)
    assert Diverter(18, FakeTimers()).divert(draft, properties) is status
    assert (draft.topic, draft.queue_id, properties) == ("T", 5, given)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 1 << 42), st.sampled_from([100, 200, 500, 1_000]))
def test_a_slot_ends_at_its_time_or_soon_after(deliver_ms: int, precision_ms: int) -> None:
    end_ms = slot_time(deliver_ms, precision_ms) + precision_ms
    assert deliver_ms <= end_ms < deliver_ms + precision_ms
    assert end_ms % precision_ms == 0


def test_half_messages_are_left_alone() -> None:
    draft = Draft("T", 5, b"x", sys_flag=4)
    assert Diverter(18).divert(draft, {"DELAY": "3", "TIMER_DELAY_MS": "1"}) is None
    assert draft.topic == "T"
