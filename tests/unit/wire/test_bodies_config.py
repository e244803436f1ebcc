"""Topics and groups: the text form, defaults, static topics."""

from __future__ import annotations

import pytest

from skylark.core.errors import RemoteProtocolError
from skylark.wire.bodies.config import (
    CustomizedRetryPolicy,
    GroupRetryPolicyType,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigAndQueueMapping,
    TopicFilterType,
    TopicQueueMappingDetail,
)
from skylark.wire.fastjson import decode_body, encode_body


@pytest.mark.spec("remoting.10.17")
def test_text_form_with_five_and_six_tokens() -> None:
    five = TopicConfig.from_text("T 4 8 6 SINGLE_TAG")
    assert five == TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=8, perm=6)
    six = TopicConfig.from_text('T 4 8 6 MULTI_TAG {"message.type":"NORMAL"}')
    assert six.attributes == {"message.type": "NORMAL"}
    assert six.topic_filter_type is TopicFilterType.MULTI_TAG
    assert six.to_text() == 'T 4 8 6 MULTI_TAG {"message.type":"NORMAL"}'
    assert five.to_text() == "T 4 8 6 SINGLE_TAG {}"


@pytest.mark.spec("remoting.10.17")
def test_text_form_with_four_tokens() -> None:
    with pytest.raises(RemoteProtocolError):
        TopicConfig.from_text("T 4 4 6")


@pytest.mark.parametrize(
    ("token", "attributes"),
    [
        ("", {}),
        ("{bad", {}),
        ("[]", {}),
        ('{"a":"b c"}', {"a": "b c"}),
        ('{"a":{}}', {}),
    ],
)
def test_attributes_that_cannot_be_parsed_are_ignored(
    token: str, attributes: dict[str, str]
) -> None:
    assert TopicConfig.from_text(f"T 4 4 6 SINGLE_TAG {token}").attributes == attributes


@pytest.mark.parametrize(
    "text",
    [
        "",
        " T 4 4 6 SINGLE_TAG",
        "T 4 x 6 SINGLE_TAG",
        "T 4 4 1_0 SINGLE_TAG",
        "T 4 4 2147483648 SINGLE_TAG",
        "T 4 4 99999999999999999999 SINGLE_TAG",
        "T 4 4 6 FOO",
    ],
)
def test_text_forms_that_are_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        TopicConfig.from_text(text)


def test_a_group_has_the_defaults_of_java() -> None:
    assert encode_body(SubscriptionGroupConfig(group_name="g")) == (
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
        b'"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
        b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
        b'"whichBrokerWhenConsumeSlowly":1}'
    )


def test_retry_policies() -> None:
    group = decode_body(
        SubscriptionGroupConfig,
        b'{"groupName":"g","groupRetryPolicy":{"exponentialRetryPolicy":{"max":9},'
        b'"customizedRetryPolicy":{"next":[1,2]},"type":"EXPONENTIAL"}}',
    )
    policy = group.group_retry_policy
    assert policy is not None
    assert policy.type is GroupRetryPolicyType.EXPONENTIAL
    assert policy.exponential_retry_policy is not None
    assert policy.exponential_retry_policy.initial == 5000
    assert policy.exponential_retry_policy.max == 9
    assert policy.customized_retry_policy == CustomizedRetryPolicy(next=[1, 2])
    delays = CustomizedRetryPolicy().next
    assert (len(delays), delays[0], delays[4], delays[13], delays[-1]) == (
        18,
        1000,
        60_000,
        600_000,
        7_200_000,
    )


def test_a_static_topic() -> None:
    text = (
        b'{"bname":"b","currIdMap":{0:1},"dirty":false,"epoch":5,"hostedQueues":{0:[{"bname":"b",'
        b'"endOffset":-1,"gen":0,"logicOffset":7,"queueId":1,"startOffset":0,"timeOfEnd":-1,'
        b'"timeOfStart":-1}]},"scope":"__global__","topic":"S","totalQueues":2}'
    )
    mapping = decode_body(TopicQueueMappingDetail, text)
    assert mapping.hosted_queues[0][0].logic_offset == 7
    assert encode_body(mapping) == text


def test_a_plain_topic_has_no_mapping() -> None:
    topic = TopicConfigAndQueueMapping(topic_name="T")
    assert b"mappingDetail" not in encode_body(topic)
    assert decode_body(TopicConfigAndQueueMapping, encode_body(topic)) == topic
