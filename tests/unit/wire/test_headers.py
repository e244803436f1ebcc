"""Custom headers whose declaration has something to get wrong: names, defaults, conversions."""

from __future__ import annotations

import importlib
import pkgutil

import msgspec
import pytest

from skylark.core.errors import HeaderFieldError
from skylark.wire import headers
from skylark.wire.fields import Header, decode_ext, encode_ext, header_fields
from skylark.wire.headers.client_header import UnregisterClientRequestHeader
from skylark.wire.headers.ha import GetAllTopicConfigRequestHeader
from skylark.wire.headers.offset import (
    GetMaxOffsetRequestHeader,
    ResetOffsetRequestHeader,
    SearchOffsetRequestHeader,
)
from skylark.wire.headers.pop import PopMessageRequestHeader
from skylark.wire.headers.pull import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryMessageRequestHeader,
)
from skylark.wire.headers.route import (
    BrokerHeartbeatRequestHeader,
    GetRouteInfoRequestHeader,
    RegisterBrokerRequestHeader,
)
from skylark.wire.headers.send import (
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)


def all_header_types() -> list[type[Header]]:
    found = []
    for module_info in pkgutil.iter_modules(headers.__path__):
        module = importlib.import_module(f"{headers.__name__}.{module_info.name}")
        found += [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, Header) and value is not Header
        ]
    return found


SEND_EXT = {
    "a": "pg",
    "b": "TopicTest",
    "c": "TBW102",
    "d": "4",
    "e": "-1",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "KEYS\x01k\x02",
    "j": "0",
    "k": "false",
    "l": "16",
    "m": "true",
    "n": "broker-a",
}


@pytest.mark.parametrize("header_type", all_header_types(), ids=lambda t: t.__name__)
def test_declarations(header_type: type[Header]) -> None:
    fields = header_fields(header_type)  # raises for a type that ext entries cannot carry
    assert fields
    assert len({field.wire_name for field in fields}) == len(fields)
    config = header_type.__struct_config__
    assert not config.gc
    with pytest.raises(TypeError, match="positional"):
        header_type("x")
    assert header_type.__doc__


def test_letters_and_long_names_carry_the_same_values() -> None:
    letters = decode_ext(SendMessageRequestHeaderV2, SEND_EXT)
    assert letters.producer_group == "pg"
    assert letters.queue_id == -1
    assert letters.batch is True
    assert letters.max_reconsume_times == 16
    long_form = SendMessageRequestHeader(**msgspec.structs.asdict(letters))
    assert encode_ext(long_form) == {
        "producerGroup": "pg",
        "topic": "TopicTest",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "-1",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": "KEYS\x01k\x02",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "true",
        "maxReconsumeTimes": "16",
        "bname": "broker-a",
    }
    assert encode_ext(letters) == SEND_EXT


def test_both_send_headers_have_the_same_attributes() -> None:
    long_names = {f.name for f in msgspec.structs.fields(SendMessageRequestHeader)}
    assert long_names == {f.name for f in msgspec.structs.fields(SendMessageRequestHeaderV2)}


@pytest.mark.parametrize("name", "abcdefgh")
def test_a_send_needs_its_first_eight_letters(name: str) -> None:
    ext = {key: value for key, value in SEND_EXT.items() if key != name}
    with pytest.raises(HeaderFieldError, match=f"the custom field <{name}> is null"):
        decode_ext(SendMessageRequestHeaderV2, ext)


def test_the_fast_codec_headers_refuse_malformed_numbers() -> None:
    strict = {t.__name__ for t in all_header_types() if t.strict_numbers}
    assert strict == {
        "PullMessageRequestHeader",
        "PullMessageResponseHeader",
        "SendMessageRequestHeaderV2",
        "SendMessageResponseHeader",
    }
    with pytest.raises(HeaderFieldError):
        decode_ext(SendMessageRequestHeaderV2, {**SEND_EXT, "j": "x"})


def test_an_optional_number_of_the_long_names_stays_unset_when_malformed() -> None:
    letters = decode_ext(SendMessageRequestHeaderV2, SEND_EXT)
    ext = encode_ext(SendMessageRequestHeader(**msgspec.structs.asdict(letters)))
    header = decode_ext(SendMessageRequestHeader, {**ext, "reconsumeTimes": "x"})
    assert header.reconsume_times is None
    assert header.max_reconsume_times == 16


def test_irregular_wire_names() -> None:
    def names(header_type: type[Header]) -> set[str]:
        return {field.wire_name for field in header_fields(header_type)}

    assert {"proxyFrowardClientId", "subVersion", "bulk"} < names(PullMessageRequestHeader)
    assert "_UNIQUE_KEY_QUERY" in names(QueryMessageRequestHeader)
    assert names(UnregisterClientRequestHeader) == {"clientID", "producerGroup", "consumerGroup"}
    assert "heartbeatTimeoutMills" in names(BrokerHeartbeatRequestHeader)
    assert {"heartbeatTimeoutMillis", "bodyCrc32", "__ZONE_NAME"} < names(
        RegisterBrokerRequestHeader
    )
    assert {"__ZONE_MODE", "__ZONE_NAME"} < names(GetRouteInfoRequestHeader)
    assert "isForce" in names(ResetOffsetRequestHeader)


def test_java_primitives_are_always_written_and_never_missing() -> None:
    assert encode_ext(ResetOffsetRequestHeader(group="g", topic="t")) == {
        "group": "g",
        "topic": "t",
        "queueId": "-1",
        "timestamp": "0",
        "isForce": "false",
    }
    assert decode_ext(GetMaxOffsetRequestHeader, {"topic": "t", "queueId": "0"}).committed
    pop = decode_ext(PopMessageRequestHeader, {"topic": "t", "consumerGroup": "g"})
    assert (pop.queue_id, pop.born_time, pop.order) == (0, 0, False)


def test_requests_of_older_clients_decode() -> None:
    assert decode_ext(GetAllTopicConfigRequestHeader, None).topic_seq is None
    register = decode_ext(
        RegisterBrokerRequestHeader,
        {
            "brokerName": "b",
            "brokerAddr": "127.0.0.1:1",
            "clusterName": "c",
            "haServerAddr": "127.0.0.1:2",
            "brokerId": "0",
        },
    )
    assert (register.compressed, register.body_crc32) == (False, 0)
    assert register.enable_acting_master is None


@pytest.mark.parametrize(
    ("boundary", "upper"),
    [(None, False), ("LOWER", False), ("UPPER", True), ("upper", True), ("x", False)],
)
def test_boundary_of_a_search_by_time(boundary: str | None, upper: bool) -> None:
    header = SearchOffsetRequestHeader(topic="t", queue_id=0, timestamp=0, boundary_type=boundary)
    assert header.is_upper is upper


def test_response_headers_of_send_and_pull() -> None:
    sent = SendMessageResponseHeader(msg_id="id", queue_id=1, queue_offset=2**40)
    assert encode_ext(sent) == {"msgId": "id", "queueId": "1", "queueOffset": str(2**40)}
    pulled = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=8, min_offset=0, max_offset=15
    )
    assert encode_ext(pulled) == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "8",
        "minOffset": "0",
        "maxOffset": "15",
    }


def test_bulk_is_absent_unless_asked_for() -> None:
    pull = PullMessageRequestHeader(
        consumer_group="g",
        topic="t",
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=0,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
    )
    assert "bulk" not in encode_ext(pull)
    pull.bulk = True
    assert encode_ext(pull)["bulk"] == "true"
