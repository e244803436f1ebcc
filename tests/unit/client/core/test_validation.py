"""What is refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from skylark.client.core.client_message import Message
from skylark.client.core.validation import check_group, check_message, check_properties, check_topic
from skylark.core.errors import ClientError, InvalidMessageError


@pytest.mark.spec("client.8.7")
def test_names_and_bodies_at_their_limits() -> None:
    check_message(Message("t" * 127, b"x"))
    with pytest.raises(ClientError, match="longer than topic max length: 127") as caught:
        check_message(Message("t" * 128, b"x"))
    assert caught.value.response_code == -1
    with pytest.raises(ClientError, match="illegal characters"):
        check_message(Message("a.b", b"x"))
    check_group("g" * 120)
    with pytest.raises(ClientError, match="longer than group max length") as caught:
        check_group("g" * 121)
    assert caught.value.response_code == -1
    check_message(Message("T", bytes(4_194_304)))
    for body in (b"", bytes(4_194_305)):
        with pytest.raises(InvalidMessageError) as refused:
            check_message(Message("T", body))
        assert refused.value.response_code == 13
    with pytest.raises(ClientError, match=r"topic\[SELF_TEST_TOPIC\] is forbidden") as caught:
        check_message(Message("SELF_TEST_TOPIC", b"x"))
    assert caught.value.response_code == -1


@pytest.mark.parametrize("group", ["", " ", "a b", "a.b", "DEFAULT_PRODUCER", "DEFAULT_CONSUMER"])
def test_groups_that_are_refused(group: str) -> None:
    with pytest.raises(ClientError):
        check_group(group)


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        " ",
    ],
)
def test_topics_that_nobody_may_send_to(topic: str) -> None:
    with pytest.raises(ClientError):
        check_message(Message(topic, b"x"))


def test_topics_to_read_may_be_those_of_the_system() -> None:
    check_topic("SELF_TEST_TOPIC")
    check_topic("%RETRY%g")
    with pytest.raises(ClientError, match="blank"):
        check_topic("")


@pytest.mark.parametrize(
    ("body", "advice"),
    [
        (None, None),
        ("text", "encode text: body.encode()"),
        (7, "json.dumps(body).encode()"),
        ({"a": 1}, "json.dumps(body).encode()"),
        ([1], "value_serializer=json_serializer) and Message(topic, value=...)"),
    ],
)
def test_a_body_must_be_bytes(body: Any, advice: str | None) -> None:
    with pytest.raises(InvalidMessageError, match="not bytes") as caught:
        check_message(Message("T", body))
    assert caught.value.response_code == 13
    assert (advice or "") in (caught.value.hint or "")
    assert (advice is None) == (caught.value.hint is None)


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"": "x"}, "blank"),
        ({"a": " "}, "blank"),
        ({"a": 1}, "must be text"),
        ({"TAGS": "x"}, "used by system"),
        ({"__RMQ.TRANSIENT.x": "y"}, "used by system"),
        ({"a": "\x02"}, "separator"),
        ({"a\x01": "b"}, "separator"),
        ({"INNER_MULTI_DISPATCH": "a/b"}, "path separator"),
    ],
)
def test_properties_that_are_refused(properties: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidMessageError, match=problem):
        check_message(Message("T", b"x", properties=properties))


def test_other_properties_are_the_applications_business() -> None:
    check_properties({"a": "b", "INNER_MULTI_DISPATCH": "%LMQ%q", "__SHARDINGKEY": "k"})
