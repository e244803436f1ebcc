"""Messages to send, and messages as they are received."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest

from skylark.client.core.client_message import (
    DeadLetter,
    Message,
    MessageExt,
    RetryLater,
    checked_tag,
    joined_keys,
)
from skylark.core.errors import ConfigError, InvalidMessageError
from skylark.wire.compress import compress_body, compression_flags
from skylark.wire.message import MessageRecord, decode_record, encode_record, pack_host
from skylark.wire.properties import encode_properties


def record(
    body: bytes = b"x", sys_flag: int = 0, topic: str = "T", **properties: str
) -> MessageRecord:
    data = encode_record(
        topic=topic,
        body=body,
        properties=encode_properties(properties).encode(),
        queue_id=3,
        queue_offset=7,
        log_offset=100,
        sys_flag=sys_flag,
        born_timestamp=1_000,
        born_host=pack_host("10.0.0.1", 5),
        store_timestamp=2_500,
        store_host=pack_host("10.0.0.2", 10911),
        reconsume_times=2,
        flag=9,
    )
    return decode_record(data)


def test_properties_of_a_message_are_a_copy() -> None:
    given = {"a": "1"}
    message = Message("T", b"x", tag="A", keys=["k1", "k2"], properties=given)
    encoded = message.encoded_properties()
    assert encoded == {"a": "1", "TAGS": "A", "KEYS": "k1 k2", "WAIT": "true"}
    encoded["b"] = "2"
    assert given == {"a": "1"}
    assert Message("T", b"", keys="k").encoded_properties()["KEYS"] == "k"
    assert Message("T", b"", wait_store_ok=False).encoded_properties() == {"WAIT": "false"}


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b"x"),
        Message("T", b"x", "A", ["k1"], {"a": "1"}, 7, wait_store_ok=False),
        Message("T", bytearray(b"x"), properties=MappingProxyType({"a": "1"})),  # type: ignore[arg-type]
    ],
)
def test_messages_can_be_pickled_copied_and_hashed(message: Message) -> None:
    for copied in (
        pickle.loads(pickle.dumps(message)),
        copy.copy(message),
        copy.deepcopy(message),
    ):
        assert copied == message
        assert hash(copied) == hash(message)
        assert type(copied) is Message
    assert len({message, copy.deepcopy(message), Message("U", b"x")}) == 2


@pytest.mark.parametrize("keys", [["k 1"], ["a", "k 1"], ["a", ""], [""], ("a ",)])
def test_a_key_with_a_blank_would_be_two_keys(keys: list[str]) -> None:
    with pytest.raises(InvalidMessageError, match="must not be empty or contain a blank") as caught:
        joined_keys(keys)
    assert repr(next(key for key in keys if key != "a")) in str(caught.value)
    assert joined_keys(["k1", "k\t2"]) == "k1 k\t2"
    assert MessageExt(record(KEYS="k1 k\t2"), "b").keys == ("k1", "k\t2")


@pytest.mark.parametrize("tag", ["A||B", "||", " A", "A ", "", "  ", "\tA"])
def test_a_tag_that_no_subscription_could_name_is_refused(tag: str) -> None:
    with pytest.raises(InvalidMessageError, match="tag"):
        checked_tag(tag)
    assert checked_tag("in transit") == "in transit"


def test_a_received_message_shows_what_the_record_holds() -> None:
    message = MessageExt(record(TAGS="A", KEYS="k1  k2", UNIQ_KEY="U", a="1"), "broker-a")
    assert (message.topic, message.body, message.tag) == ("T", b"x", "A")
    assert message.keys == ("k1", "k2")
    assert message.msg_id == "U"
    assert (message.queue_id, message.queue_offset, message.reconsume_times) == (3, 7, 2)
    assert (message.queue.broker_name, message.queue.queue_id) == ("broker-a", 3)
    assert message.born_time == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert message.store_time == datetime(1970, 1, 1, 0, 0, 2, 500_000, tzinfo=UTC)
    assert (message.born_host, message.store_host) == ("10.0.0.1:5", "10.0.0.2:10911")
    assert message.properties["a"] == "1"
    assert message.flag == 9
    assert message.transaction_id is None
    assert repr(message) == "MessageExt('T', broker-a:3@7, msg_id='U', body=1 bytes)"


def test_without_a_unique_id_the_place_in_the_log_is_the_id() -> None:
    message = MessageExt(record(), "b")
    assert message.msg_id == message.offset_msg_id == "0A00000200002A9F0000000000000064"


def test_a_retried_message_has_its_own_topic() -> None:
    message = MessageExt(record(topic="%RETRY%g", RETRY_TOPIC="T"), "b")
    assert (message.topic, message.queue.topic) == ("T", "%RETRY%g")
    assert MessageExt(record(topic="%RETRY%g"), "b").topic == "%RETRY%g"
    assert MessageExt(record(topic="ns%T"), "b", topic="T").topic == "T"


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_a_compressed_body_is_opened_when_it_is_read(kind: int) -> None:
    packed = compress_body(b"a" * 9_000, kind)
    message = MessageExt(record(packed, sys_flag=compression_flags(kind)), "b")
    assert message.body == b"a" * 9_000
    assert message.body == b"a" * 9_000


def test_a_message_of_a_transaction_has_its_id() -> None:
    assert MessageExt(record(TRAN_MSG="true", UNIQ_KEY="U"), "b").transaction_id == "U"


def test_outcomes_that_a_handler_raises() -> None:
    assert RetryLater(level=3).level == 3
    assert RetryLater().level == 0
    assert str(RetryLater("not now")) == "not now"
    copied = pickle.loads(pickle.dumps(RetryLater("not now", level=3)))
    assert (str(copied), copied.level) == ("not now", 3)


@pytest.mark.parametrize("kind", [RetryLater, DeadLetter])
def test_the_reason_may_be_the_error_that_was_caught(kind: Any) -> None:
    assert str(kind(ValueError("too small"))) == "too small"


@pytest.mark.parametrize("given", [10, 0.5, True, timedelta(seconds=10)], ids=str)
def test_a_number_is_no_reason_to_retry(given: Any) -> None:
    """It would be a delay that nobody applies."""
    with pytest.raises(ConfigError) as caught:
        RetryLater(given)
    assert f"must be text, not {given!r}: RetryLater(level=3)" in str(caught.value)
    assert "1 is 1 s, 2 is 5 s, 3 is 10 s" in str(caught.value)


@pytest.mark.parametrize("name", ["delay", "seconds", "delay_level"])
def test_another_keyword_names_the_level(name: str) -> None:
    given: Any = {name: 10}
    with pytest.raises(ConfigError) as caught:
        RetryLater("not now", **given)
    assert f"unexpected keyword argument {name!r}: RetryLater(level=3)" in str(caught.value)


@pytest.mark.parametrize("level", [-1, 2**31, True, "3", 2.0, None])
def test_a_level_that_no_broker_has_is_refused(level: Any) -> None:
    with pytest.raises(ConfigError, match="must be a whole number from 0, not"):
        RetryLater(level=level)
