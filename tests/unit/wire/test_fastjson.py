"""Typed bodies: what is accepted beyond the declared types, by which decoder, and the limits."""

from __future__ import annotations

import json

import pytest

from skylark.core.errors import RemoteProtocolError
from skylark.wire import fastjson
from skylark.wire.bodies.admin_body import GetConsumerStatusBody, ResetOffsetBody
from skylark.wire.bodies.common_body import DataVersion, GroupList, KVTable, MessageQueue
from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
)
from skylark.wire.bodies.route_body import BrokerData, ClusterInfo, QueueData, TopicRouteData
from skylark.wire.bodies.slave_sync_body import ConsumerOffsetSerializeWrapper
from skylark.wire.bodies.stats import ConsumeStatsList, QueryCorrectionOffsetBody
from skylark.wire.fastjson import DIALECT_SIZE_MAX, decode_body, encode_body

QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)
ROUTE = TopicRouteData(
    queue_datas=[QueueData(broker_name="b", read_queue_nums=4, write_queue_nums=4, perm=6)],
    broker_datas=[BrokerData(cluster="c", broker_name="b", broker_addrs={0: "x:1", 1: "y:2"})],
)


@pytest.mark.spec("remoting.10.12")
@pytest.mark.parametrize(
    "text",
    [
        '{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:9}}',
        '{"offsetTable":{{"topic":"T","queueId":"0","brokerName":"b","more":1}:"9"}}',
        r'{"offsetTable":{"{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"T\"}":9}}',
    ],
)
def test_queues_as_keys(text: str) -> None:
    assert decode_body(ResetOffsetBody, text.encode()) == ResetOffsetBody(offset_table={QUEUE: 9})


@pytest.mark.spec("remoting.10.12")
def test_integer_keys_quoted_and_not() -> None:
    for text in ('{"correctionOffsets":{0:5,1:6}}', '{"correctionOffsets":{"0":5,"1":6}}'):
        body = decode_body(QueryCorrectionOffsetBody, text.encode())
        assert body.correction_offsets == {0: 5, 1: 6}
    mixed = b'{"correctionOffsets":{0:5,"1":"6"}}'
    assert decode_body(QueryCorrectionOffsetBody, mixed).correction_offsets == {0: 5, 1: 6}


@pytest.mark.spec("remoting.10.12")
def test_references_in_a_list() -> None:
    text = b'[{"brokerName":"b","queueId":0,"topic":"T"},{"$ref":"$[0]"},{"$ref":"$[7]"}]'
    assert decode_body(list[MessageQueue], text) == [QUEUE, QUEUE]


def test_a_heartbeat_from_cpp() -> None:
    """Enums by ordinal, numbers in quotes, members missing (remoting 10.13)."""
    beat = decode_body(
        HeartbeatData,
        b'{"clientID":"1.2.3.4@5","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
        b'"groupName":"g","messageModel":1,"subscriptionDataSet":[{"codeSet":["97"],'
        b'"subString":"a","subVersion":"123","tagsSet":["a"],"topic":"T"}]}]}\n',
    )
    (consumer,) = beat.consumer_data_set
    assert consumer.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    assert consumer.unit_mode is False
    (subscription,) = consumer.subscription_data_set
    assert (subscription.sub_version, subscription.code_set) == (123, [97])
    assert b'"consumeType":"CONSUME_PASSIVELY"' in encode_body(beat)


def test_a_heartbeat_with_an_unknown_enum_is_accepted() -> None:
    beat = decode_body(
        HeartbeatData,
        b'{"clientID":"c","consumerDataSet":[{"consumeType":"CONSUME_TOMORROW","messageModel":9,'
        b'"consumeFromWhere":-1,"groupName":"g"}]}',
    )
    (consumer,) = beat.consumer_data_set
    assert consumer.group_name == "g"
    assert consumer.consume_type is None
    assert consumer.message_model is None
    assert consumer.consume_from_where is None


def test_null_counts_as_absent() -> None:
    beat = decode_body(
        HeartbeatData,
        b'{"clientID":null,"consumerDataSet":null,"heartbeatFingerprint":null,'
        b'"producerDataSet":[null,{"groupName":"p"}]}',
    )
    assert beat == HeartbeatData(producer_data_set=[ProducerData(group_name="p")])
    assert decode_body(KVTable, b'{"table":{"a":null,"b":"c"}}') == KVTable(table={"b": "c"})


def test_numbers_and_booleans_in_place_of_text() -> None:
    body = decode_body(KVTable, b'{"table":{"a":1,"b":true,"c":1.0E10,"d":"x"}}')
    assert body.table == {"a": "1", "b": "true", "c": "1.0E10", "d": "x"}


def test_bare_keys_of_a_map_of_strings() -> None:
    assert decode_body(KVTable, b'{"table":{7:"x"}}').table == {"7": "x"}


def test_both_decoders_ignore_unknown_members() -> None:
    version = DataVersion(state_version=0, counter=3, timestamp=5)
    assert decode_body(DataVersion, b'{"counter":3,"timestamp":5,"new":{"a":[1]}}') == version
    assert decode_body(DataVersion, b'{"counter":3,"timestamp":5,"new":{0:[{{}:1}]}}') == version


@pytest.mark.parametrize("standard", [True, False])
def test_the_route_in_both_forms(standard: bool) -> None:
    data = encode_body(ROUTE, standard=standard)
    assert b" " not in data
    assert (b'{"0":"x:1","1":"y:2"}' if standard else b'{0:"x:1",1:"y:2"}') in data
    assert decode_body(TopicRouteData, data) == ROUTE
    if standard:
        assert json.loads(data)["brokerDatas"][0]["brokerAddrs"]["0"] == "x:1"


@pytest.mark.parametrize(
    ("body", "standard"),
    [
        (ROUTE, True),
        (HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name="p")]), False),
        (DataVersion(counter=1), False),
    ],
)
def test_the_fast_decoder_serves_common_bodies(
    body: object, standard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(data: bytes) -> None:
        pytest.fail("the slow road was taken")

    monkeypatch.setattr(fastjson, "_parse_quickly", closed)
    assert decode_body(type(body), encode_body(body, standard=standard)) == body


def test_a_body_with_a_reference_is_never_decoded_fast() -> None:
    """msgspec would read the reference as a bean without members."""
    text = (
        b'{"brokerAddrTable":{"a":{"brokerName":"n"},"b":{"$ref":"$.brokerAddrTable.a"}},'
        b'"clusterAddrTable":{}}'
    )
    assert decode_body(ClusterInfo, text).broker_addr_table["b"].broker_name == "n"
    harmless = b'{"table":{"k":"\\"$ref\\"","$ref":"v"}}'
    assert decode_body(KVTable, harmless).table == {"k": '"$ref"', "$ref": "v"}


@pytest.mark.parametrize(
    ("body_type", "data"),
    [
        (DataVersion, b""),
        (DataVersion, b"[]"),
        (DataVersion, b"5"),
        (DataVersion, b'{"counter":"many"}'),
        (DataVersion, b'{"counter":1e400}'),
        (DataVersion, b'{"counter":9223372036854775808}'),
        (DataVersion, b'{"counter":' + b"9" * 5000 + b"}"),
        (DataVersion, b'{"counter":{"$ref":"$"}}'),
        (HeartbeatData, b'{"heartbeatFingerprint":2147483648}'),
        (HeartbeatData, b'{"consumerDataSet":{}}'),
        (HeartbeatData, b'{"clientID":[]}'),
        (HeartbeatData, b'{"clientID":"\xff"}'),
        (HeartbeatData, b'{"x":' + b"[" * 100_000),
        (ResetOffsetBody, b'{"offsetTable":{5:1}}'),
        (ResetOffsetBody, b'{"offsetTable":{"T":1}}'),
        (ResetOffsetBody, b'{"offsetTable":{"[]":1}}'),
        (ResetOffsetBody, b'{"offsetTable":{{"queueId":"x"}:1}}'),
        (QueryCorrectionOffsetBody, b'{"correctionOffsets":{"a":1}}'),
        (QueryCorrectionOffsetBody, b'{"correctionOffsets":{{"a":1}:1}}'),
        (KVTable, b'{"table":{{"a":1}:"x"}}'),
        (KVTable, b'{"table":{"a":[]}}'),
    ],
)
def test_refused(body_type: type[object], data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_body(body_type, data)


def test_size_limits() -> None:
    with pytest.raises(RemoteProtocolError, match="over the limit 10"):
        decode_body(DataVersion, b'{"counter":1}', size_max=10)

    padding = b" " * DIALECT_SIZE_MAX
    assert decode_body(DataVersion, b'{"counter":1}' + padding).counter == 1
    with pytest.raises(RemoteProtocolError, match="not plain JSON"):
        decode_body(DataVersion, b'{"counter":1,0:0}' + padding)
    offsets = decode_body(
        ConsumerOffsetSerializeWrapper, b'{"offsetTable":{"T@g":{0:5}}}' + padding
    )
    assert offsets.offset_table == {"T@g": {0: 5}}


def test_references_cannot_expand_a_body_without_limit() -> None:
    stats = ",".join(['{"offsetTable":{}}'] * 300)
    groups = ",".join(f'"g{i}":{{"$ref":"$.x.l"}}' for i in range(300))
    brokers = ",".join(['{"$ref":"$.y"}'] * 300)
    text = f'{{"x":{{"l":[{stats}]}},"y":{{{groups}}},"consumeStatsList":[{brokers}]}}'
    with pytest.raises(RemoteProtocolError, match="expand"):
        decode_body(ConsumeStatsList, text.encode())


def test_a_body_inside_itself_ends_where_the_type_ends() -> None:
    text = b'{"consumerTable":{"c":{"$ref":"$"}},"messageQueueTable":{}}'
    with pytest.raises(RemoteProtocolError):
        decode_body(GetConsumerStatusBody, text)


def test_text_that_java_cannot_encode() -> None:
    assert encode_body(GroupList(group_list=["a\ud800"])) == b'{"groupList":["a?"]}'
