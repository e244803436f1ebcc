"""Heartbeats: the exact text and the fingerprint."""

from __future__ import annotations

from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
    heartbeat_fingerprint,
)
from skylark.wire.fastjson import decode_body, encode_body


def heartbeat(client_id: str = "ip@pid", sub_version: int = 5, tag: str = "b") -> HeartbeatData:
    subscription = SubscriptionData(
        topic="T",
        sub_string=f"a || {tag}",
        tags_set=["a", tag],
        code_set=[97, ord(tag)],
        sub_version=sub_version,
    )
    consumer = ConsumerData(
        group_name="cg",
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=MessageModel.CLUSTERING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        subscription_data_set=[subscription],
    )
    return HeartbeatData(
        client_id=client_id,
        consumer_data_set=[consumer],
        producer_data_set=[ProducerData(group_name="pg")],
    )


def test_the_text_of_a_heartbeat() -> None:
    text = (
        b'{"clientID":"ip@pid","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        b'"consumeType":"CONSUME_PASSIVELY","groupName":"cg","messageModel":"CLUSTERING",'
        b'"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[97,98],'
        b'"expressionType":"TAG","subString":"a || b","subVersion":5,"tagsSet":["a","b"],'
        b'"topic":"T"}],"unitMode":false}],"heartbeatFingerprint":0,'
        b'"producerDataSet":[{"groupName":"pg"}],"withoutSub":false}'
    )
    assert encode_body(heartbeat()) == text
    assert decode_body(HeartbeatData, text) == heartbeat()


def test_fingerprint() -> None:
    """The vector of remoting 7.2 and 10.14."""
    beat = heartbeat()
    beat.heartbeat_fingerprint = 1
    beat.without_sub = True
    assert heartbeat_fingerprint(beat) == 2051189860
    assert beat.consumer_data_set[0].subscription_data_set[0].sub_version == 5
    assert (beat.client_id, beat.heartbeat_fingerprint) == ("ip@pid", 1)


def test_only_subscriptions_and_groups_change_the_fingerprint() -> None:
    same = heartbeat(client_id="other", sub_version=77)
    assert heartbeat_fingerprint(same) == heartbeat_fingerprint(heartbeat())
    assert heartbeat_fingerprint(heartbeat(tag="c")) != heartbeat_fingerprint(heartbeat())
