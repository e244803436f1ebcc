"""Unique ids of plain property strings: found in one pass, or at the place of the one before."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skylark.broker.send.message_policy import PlainIds, is_plain
from skylark.wire.properties import PROPERTY_UNIQ_KEY, find_property

ITEMS = [
    "UNIQ_KEY\x01A\x02",
    "UNIQ_KEY\x01B\x02",
    "UNIQ_KEY\x01\x02",
    "UNIQ_KEY\x02",
    "UNIQ_KEY\x01C",
    "UNIQ_KEY\x01D\x01E\x02",
    "UNIQ_KEY2\x01F\x02",
    "XUNIQ_KEY\x01G\x02",
    "UNIQ_KEY",
    "KEYS\x01UNIQ_KEY\x02",
    "KEYS\x01UNIQ_KEY\x01H\x02",
    "TAGS\x01a\x02",
    "TAGS\x01größe\n\0\x02",
    "DELAY\x013\x02",
    "DELAYED\x013\x02",
    "TIMER_DELAY_SEC\x013\x02",
    "TRAN_MSG\x01true\x02",
    "CLUSTER\x01c\x02",
    "POP_CK\x01c\x02",
    "\x01x\x02",
    "\x01",
    "\x02",
]
texts = st.lists(st.sampled_from(ITEMS), max_size=6).map("".join) | st.lists(
    st.sampled_from([*ITEMS, "a", "UNIQ_", "KEY", "DELAY", "\x01", "\x02", "ü", "\n"]), max_size=12
).map("".join)


@settings(max_examples=1_000, deadline=None)
@given(texts)
@example("")
@example("UNIQ_KEY\x01A\x02TAGS\x01a\x02UNIQ_KEY\x01B\x02")
@example("UNIQ_KEY\x01A\x02TAGS\x01a\x02UNIQ_KEY\x01B")
@example("KEYS\x01k\x02UNIQ_KEY\x01A\x02DELAY\x011\x02")
@example("KEYS\x01UNIQ_KEY\x01A\x02")
def test_the_unique_id_of_a_plain_text_and_of_no_other(text: str) -> None:
    expected = find_property(text, PROPERTY_UNIQ_KEY) if is_plain(text) else None
    assert PlainIds().find(text) == expected


#: Strings of which many differ in few characters only.
alike = st.tuples(
    st.sampled_from(["", "KEYS\x01k\x02", "DELAY\x011\x02", "UNIQ_KEY\x01A\x02"]),
    st.text("AB\x01\x02", max_size=4),
    st.sampled_from(["", "\x02", "TAGS\x01a\x02", "\x02TAGS\x01a\x02", "\x02DELAY\x011\x02"]),
).map(lambda parts: f"{parts[0]}UNIQ_KEY\x01{parts[1]}{parts[2]}")


@settings(max_examples=500, deadline=None)
@given(st.lists(alike | texts, min_size=2, max_size=12))
@example(
    ["UNIQ_KEY\x01ABC\x02", "UNIQ_KEY\x01\x02BC\x02", "UNIQ_KEY\x01A\x02C\x02", "UNIQ_KEY\x01"]
)
@example(["UNIQ_KEY\x01A\x02DELAYED\x02", "UNIQ_KEY\x01A\x02DELAY\x01\x02"])
def test_the_text_before_changes_nothing(sent: list[str]) -> None:
    ids = PlainIds()
    for text in sent:
        assert ids.find(text) == PlainIds().find(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("UNIQ_KEY\x01A\x02", "A"),
        ("TAGS\x01a\x02UNIQ_KEY\x01A\x02KEYS\x01k\x02", "A"),
        ("UNIQ_KEY\x01A\x02UNIQ_KEY\x01B\x02", "B"),
        ("UNIQ_KEY\x01A\x01B\x02", "A\x01B"),
        ("UNIQ_KEY\x01größe\n\x02", "größe\n"),
        ("UNIQ_KEY\x01A\x02DELAYED\x011\x02", "A"),
        ("", None),
        ("TAGS\x01a\x02", None),
        ("UNIQ_KEY\x01A", None),
        ("UNIQ_KEY\x01\x02", None),
        ("UNIQ_KEY2\x01A\x02", None),
        ("KEYS\x01UNIQ_KEY\x01A\x02", None),
        ("UNIQ_KEY\x01A\x02DELAY\x011\x02", None),
        ("DELAY\x011\x02UNIQ_KEY\x01A\x02", None),
        ("UNIQ_KEY\x01A\x02\x02", None),
    ],
)
def test_examples(text: str, expected: str | None) -> None:
    assert PlainIds().find(text) == expected


def test_a_long_text_takes_no_longer_than_its_length() -> None:
    """What was taken is never given back: otherwise this would not end."""
    text = "UNIQ_KEY\x01A\x02" * 3_000
    assert PlainIds().find(text) == "A"
    assert PlainIds().find(text + "DELAY\x011\x02") is None
    assert PlainIds().find("K\x01" + "\x01" * 30_000) is None
