"""Message policy: actions of properties, delay levels, timer slots and redirected messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skylark.broker.send import message_policy
from skylark.broker.send.message_policy import (
    DELAY,
    HALF,
    NORMALISE,
    OF_HALF,
    PRIORITY,
    REFUSE,
    REPLACE,
    STRIP,
    TIMER,
    TIMER_NAMES,
    Diverter,
    PropertyScanner,
    delay_level,
    scan_properties,
    slot_time,
)
from skylark.core.errors import BrokerError
from skylark.core.names import SCHEDULE_TOPIC, TIMER_TOPIC
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutStatus
from skylark.wire.properties import encode_properties, parse_properties
from tests.unit.broker.tables import SteppingClock, live_settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (None, 0)),
        ("a\x011\x02", (None, 0)),
        ("a\x011", (None, 0)),  # the last separator may be missing
        ("UNIQ_KEY\x01A\x02", ("A", 0)),
        ("TAGS\x01a\x02UNIQ_KEY\x01A\x02KEYS\x01k\x02", ("A", 0)),
        ("UNIQ_KEY\x01A\x01B\x02", ("A\x01B", 0)),  # a value may hold the other separator
        ("MY_DELAY\x011\x02DELAYED\x012\x02", (None, 0)),
        ("a\x01DELAY\x02", (None, 0)),
        ("UNIQ_KEY2\x01A\x02", (None, 0)),
        ("KEYS\x01UNIQ_KEY\x01A\x02", (None, 0)),
        ("UNIQ_KEY\x01A\x02UNIQ_KEY\x01B\x02", ("B", NORMALISE)),
        ("a\x01\x02", (None, NORMALISE)),
        ("\x01x\x02", (None, NORMALISE)),
        ("a\x011\x02\x02", (None, NORMALISE)),
        ("\x02", (None, NORMALISE)),
        ("word", (None, NORMALISE)),
        ("DELAY\x011\x02UNIQ_KEY\x01A\x02", ("A", DELAY)),
        ("DELAY\x01\x02", (None, NORMALISE)),
        ("TRAN_MSG\x01true\x02REAL_QID\x011\x02", (None, HALF | OF_HALF)),
        ("CLUSTER\x01c\x02POP_CK\x01c\x02", (None, REPLACE | STRIP)),
        ("TIMER_DELAY_MS\x015\x02INNER_NUM\x012\x02", (None, TIMER | REFUSE)),
        ("_SYS_MSG_PRIORITY_\x013", (None, PRIORITY)),
    ],
)
def test_actions_of_property_strings(text: str, expected: tuple[str | None, int]) -> None:
    assert scan_properties(text) == PropertyScanner().scan(text) == expected


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab\x01\x02", max_size=12))
def test_properties_can_be_appended_to_a_string_without_actions(text: str) -> None:
    if scan_properties(text)[1] == 0 and text:
        whole = text.removesuffix("\x02") + "\x02z\x01end\x02"
        assert parse_properties(whole) == {**parse_properties(text), "z": "end"}
        assert encode_properties(parse_properties(text)) == text.removesuffix("\x02") + "\x02"


ITEMS = [
    "UNIQ_KEY\x01A\x02", "UNIQ_KEY\x01B\x02", "UNIQ_KEY\x01\x02", "UNIQ_KEY\x02",
    "UNIQ_KEY\x01C", "UNIQ_KEY\x01D\x01E\x02", "UNIQ_KEY2\x01F\x02", "XUNIQ_KEY\x01G\x02",
    "UNIQ_KEY", "KEYS\x01UNIQ_KEY\x02", "KEYS\x01UNIQ_KEY\x01H\x02", "TAGS\x01a\x02",
    "TAGS\x01größe\n\0\x02", "DELAY\x013\x02", "DELAYED\x013\x02", "TIMER_DELAY_SEC\x013\x02",
    "TRAN_MSG\x01true\x02", "CLUSTER\x01c\x02", "POP_CK\x01c\x02", "\x01x\x02", "\x01", "\x02",
]  # fmt: skip
texts = st.lists(st.sampled_from(ITEMS), max_size=6).map("".join) | st.lists(
    st.sampled_from([*ITEMS, "a", "UNIQ_", "KEY", "DELAY", "\x01", "\x02", "ü", "\n"]), max_size=12
).map("".join)
#: Strings of which many differ in few characters only.
alike = st.tuples(
    st.sampled_from(["", "KEYS\x01k\x02", "DELAY\x011\x02", "UNIQ_KEY\x01A\x02"]),
    st.text("AB\x01\x02", max_size=4),
    st.sampled_from(["", "\x02", "TAGS\x01a\x02", "\x02TAGS\x01a\x02", "\x02DELAY\x011\x02"]),
).map(lambda parts: f"{parts[0]}UNIQ_KEY\x01{parts[1]}{parts[2]}")


@settings(max_examples=1_000, deadline=None)
@given(st.lists(alike | texts, min_size=1, max_size=12))
@example(
    ["UNIQ_KEY\x01ABC\x02", "UNIQ_KEY\x01\x02BC\x02", "UNIQ_KEY\x01A\x02C\x02", "UNIQ_KEY\x01"]
)
@example(["UNIQ_KEY\x01A\x02DELAYED\x02", "UNIQ_KEY\x01A\x02DELAY\x01\x02"])
def test_earlier_strings_do_not_change_the_result(sent: list[str]) -> None:
    scanner = PropertyScanner()
    for text in sent:
        assert scanner.scan(text) == scan_properties(text)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The lists of names that were compiled."""
    made: list[tuple[str, ...]] = []
    shape = message_policy._Shape

    def make(item_names: Any, *rest: Any) -> Any:
        made.append(tuple(item_names))
        return shape(item_names, *rest)

    monkeypatch.setattr(message_policy, "_Shape", make)
    return made


def test_names_that_never_come_again_are_not_compiled(compiled: list[tuple[str, ...]]) -> None:
    scanner = PropertyScanner()
    for number in range(1_000):
        text = f"UNIQ_KEY\x01U{number}\x02user{number}\x01v\x02"
        assert scanner.scan(text) == (f"U{number}", 0)
    assert compiled == []
    assert len(scanner._seen) <= 64


def test_names_are_compiled_when_they_come_for_the_second_time(
    compiled: list[tuple[str, ...]],
) -> None:
    scanner = PropertyScanner()
    for number in range(10):
        scanner.scan(f"KEYS\x01k{number}\x02UNIQ_KEY\x01U{number}\x02")
        assert len(compiled) == min(number, 1)
    assert compiled == [("KEYS", "UNIQ_KEY")]


@pytest.mark.parametrize("lists", [5, 6, 60])
def test_more_lists_of_names_than_are_kept_are_seldom_compiled(
    compiled: list[tuple[str, ...]], lists: int
) -> None:
    """Lists that come in turns would otherwise replace each other for ever."""
    scanner = PropertyScanner()
    for number in range(12_800):
        text = f"UNIQ_KEY\x01U{number}\x02tenant{number % lists}\x01v\x02"
        assert scanner.scan(text) == (f"U{number}", 0)
    assert len(compiled) <= 4 + 12_800 // 128


def test_the_names_that_were_used_last_stay_compiled(compiled: list[tuple[str, ...]]) -> None:
    scanner = PropertyScanner()

    def send(name: str) -> None:
        assert scanner.scan(f"{name}\x01{len(compiled)}\x02") == (None, 0)

    for name in ("a", "b", "c", "d"):
        send(name)
        send(name)
    send("a")
    for _ in range(300):
        send("new")
        send("a")
    assert compiled == [("a",), ("b",), ("c",), ("d",), ("new",)]
    for name in ("a", "c", "d", "new"):
        assert len(compiled) == 5
        send(name)
    send("b")
    assert len(compiled) == 5


def test_the_compiled_names_are_bounded(compiled: list[tuple[str, ...]]) -> None:
    scanner = PropertyScanner()
    for number in range(4_000):
        # Each list twice in a row.
        text = "".join(f"n{number // 2}_{at}\x01v\x02" for at in range(number // 2 % 100 + 1))
        assert scanner.scan(text) == (None, 0)
    assert sum(map(len, scanner._shapes.values())) <= 4 * 65
    assert len(compiled) < 4 * 65 + 4_000 // 128


def test_a_long_string_takes_no_longer_than_its_length() -> None:
    """What was taken is never given back: otherwise this would not end."""
    scanner = PropertyScanner()
    assert scanner.scan("K\x01" + "\x01" * 30_000) == (None, 0)
    assert scanner.scan("K\x01" + "\x01" * 30_000 + "\x02\x02") == (None, NORMALISE)


@pytest.mark.parametrize(("text", "level"), [("3", 3), ("-1", -1), ("+2", 2), ("0", 0)])
def test_level(text: str, level: int) -> None:
    assert delay_level({"DELAY": text}) == level
    assert delay_level({}) == 0


@pytest.mark.parametrize("text", ["x", "1.5", "-", "1" * 11, "\u00b2"])
def test_a_level_that_is_not_a_number(text: str) -> None:
    with pytest.raises(BrokerError, match="For input string"):
        delay_level({"DELAY": text})


def test_a_level_selects_its_queue() -> None:
    draft, properties = Draft("T", 5, b"x"), {"DELAY": "99", "TIMER_DELAY_SEC": "3"}
    assert diverter().divert(draft, properties) is None
    assert (draft.topic, draft.queue_id) == (SCHEDULE_TOPIC, 17)
    assert properties == {"DELAY": "18", "REAL_TOPIC": "T", "REAL_QID": "5"}


@pytest.mark.parametrize("name", TIMER_NAMES)
def test_timer_messages(name: str) -> None:
    draft = Draft("T", 5, b"x")
    assert diverter().divert(draft, {name: "3"}) is PutStatus.WHEEL_TIMER_NOT_ENABLE
    # What comes out of the timer has its time with it, and what is rolled stays in its topic.
    assert diverter().divert(draft, {name: "3", "TIMER_OUT_MS": "1"}) is None
    assert diverter().divert(Draft(TIMER_TOPIC, 0, b"x"), {name: "3"}) is None
    assert (draft.topic, draft.queue_id) == ("T", 5)


class FakeTimer:
    """A timer of one second with one slot that is full."""

    precision_ms = 1_000

    def slot_count_at(self, slot_time_ms: int) -> int:
        return 1 << 31 if slot_time_ms == 1_700_000_077_000 else 0


def diverter(timer: Any = None) -> Diverter:
    """With 18 levels and the default settings, at a fixed time."""
    return Diverter(live_settings(), timer, SteppingClock(1_700_000_000_000))


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
    assert diverter(FakeTimer()).divert(draft, properties) is None
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
def test_timed_messages_that_are_not_redirected(
    properties: dict[str, str], status: PutStatus | None
) -> None:
    draft, given = Draft("T", 5, b"x"), dict(properties)
    assert diverter(FakeTimer()).divert(draft, properties) is status
    assert (draft.topic, draft.queue_id, properties) == ("T", 5, given)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 1 << 42), st.sampled_from([100, 200, 500, 1_000]))
def test_a_slot_ends_at_or_after_the_delivery_time(deliver_ms: int, precision_ms: int) -> None:
    end_ms = slot_time(deliver_ms, precision_ms) + precision_ms
    assert deliver_ms <= end_ms < deliver_ms + precision_ms
    assert end_ms % precision_ms == 0


def test_half_messages_are_not_redirected() -> None:
    draft = Draft("T", 5, b"x", sys_flag=4)
    assert diverter().divert(draft, {"DELAY": "3", "TIMER_DELAY_MS": "1"}) is None
    assert draft.topic == "T"
