"""Topics and consumer groups as configured on a broker, and the mapping of static topics.

A topic also has a *text form*, used inside compressed registrations: blank-separated
``name readQueueNums writeQueueNums perm filterType attributes``. The last token, a JSON object,
exists since 5.0; one that cannot be parsed is ignored, as Java does. Neither ``order`` nor
``topicSysFlag`` is in it.

Counterpart of Java's ``TopicConfig``, ``SubscriptionGroupConfig``, ``TopicQueueMappingInfo`` and
``TopicQueueMappingDetail``.
"""

from __future__ import annotations

import re
from enum import auto

import msgspec

from skylark.core.errors import RemoteProtocolError
from skylark.wire.bodies.common_body import Body, JavaEnum
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.fields import INT32_MAX, INT32_MIN, Int32, Int64

_is_int32 = re.compile(r"[+-]?[0-9]{1,10}").fullmatch


class TopicFilterType(JavaEnum):
    """How many tags a message of the topic may have; all known clients use one."""

    SINGLE_TAG = auto()
    MULTI_TAG = auto()


class TopicConfig(Body, kw_only=True):
    """One topic on one broker (17, 18, 21, 103, 351)."""

    topic_name: str = ""
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6  # 8 priority, 4 read, 2 write, 1 inherit
    topic_filter_type: TopicFilterType | None = TopicFilterType.SINGLE_TAG
    topic_sys_flag: Int32 = 0  # 1 unit, 2 unit subscription
    order: bool = False
    attributes: dict[str, str] = msgspec.field(default_factory=dict)

    def to_text(self) -> str:
        """The text form, with attributes."""
        filter_type = self.topic_filter_type or TopicFilterType.SINGLE_TAG
        return (
            f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm}"
            f" {filter_type} {encode_body(self.attributes).decode()}"
        )

    @classmethod
    def from_text(cls, text: str) -> TopicConfig:
        """Read the text form; five tokens are needed, the attributes are optional."""
        tokens = text.split(" ", 5)  # values of attributes may contain blanks
        if len(tokens) < 5 or tokens[4] not in TopicFilterType.__members__:
            raise RemoteProtocolError(f"{text!r:.200} is not a topic configuration")
        attributes: dict[str, str] = {}
        if len(tokens) == 6:
            try:
                attributes = decode_body(dict[str, str], tokens[5].encode("utf-8", "replace"))
            except RemoteProtocolError:
                attributes = {}
        return cls(
            topic_name=tokens[0],
            read_queue_nums=_int32(tokens[1]),
            write_queue_nums=_int32(tokens[2]),
            perm=_int32(tokens[3]),
            topic_filter_type=TopicFilterType[tokens[4]],
            attributes=attributes,
        )


def _int32(text: str) -> int:
    value = int(text) if _is_int32(text) else INT32_MAX + 1
    if not INT32_MIN <= value <= INT32_MAX:
        raise RemoteProtocolError(f"{text!r:.50} is not a number of a topic configuration")
    return value


# ---- static topics -----------------------------------------------------------------------------


class LogicQueueMappingItem(Body, kw_only=True):
    """One range of a logical queue and the physical queue that holds it."""

    bname: str = ""
    gen: Int32 = 0
    queue_id: Int32 = 0
    logic_offset: Int64 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = -1  # open
    time_of_start: Int64 = -1
    time_of_end: Int64 = -1


class TopicQueueMappingInfo(Body, kw_only=True):
    """What a name server knows of a static topic on one broker."""

    topic: str = ""
    scope: str = "__global__"
    bname: str = ""
    total_queues: Int32 = 0
    epoch: Int64 = 0
    dirty: bool = False
    curr_id_map: dict[int, Int32] = msgspec.field(default_factory=dict)  # logical -> physical


class TopicQueueMappingDetail(TopicQueueMappingInfo, kw_only=True):
    """What the broker itself knows: also the ranges of each logical queue (513)."""

    hosted_queues: dict[int, list[LogicQueueMappingItem]] = msgspec.field(default_factory=dict)


class TopicConfigAndQueueMapping(TopicConfig, kw_only=True):
    """A topic with its mapping, if it is a static one (351)."""

    mapping_detail: TopicQueueMappingDetail | None = None


class CreateTopicListRequestBody(Body, kw_only=True):
    """Topics to create or change in one request (18)."""

    topic_config_list: list[TopicConfig] = msgspec.field(default_factory=list)


# ---- consumer groups ---------------------------------------------------------------------------


class GroupRetryPolicyType(JavaEnum):
    """Which of the two policies counts."""

    EXPONENTIAL = auto()
    CUSTOMIZED = auto()


class ExponentialRetryPolicy(Body, kw_only=True):
    """Delays in ms that grow by a factor."""

    initial: Int64 = 5000
    max: Int64 = 7_200_000
    multiplier: Int64 = 2


#: 1 s 5 s 10 s 30 s, 1 to 10 min, 20 min, 30 min, 1 h, 2 h: the delay levels
_RETRY_DELAYS_SEC = (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)


class CustomizedRetryPolicy(Body, kw_only=True):
    """A list of delays in ms; the last one repeats."""

    next: list[Int64] = msgspec.field(
        default_factory=lambda: [delay * 1000 for delay in _RETRY_DELAYS_SEC]
    )


class GroupRetryPolicy(Body, kw_only=True):
    """How long a message that was not consumed waits for its next turn."""

    type: GroupRetryPolicyType | None = GroupRetryPolicyType.CUSTOMIZED
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


class SimpleSubscriptionData(Body, kw_only=True):
    """A subscription that a group is expected to have."""

    topic: str = ""
    expression_type: str | None = None
    expression: str | None = None
    version: Int64 = 0


class SubscriptionGroupConfig(Body, kw_only=True):
    """One consumer group on one broker (200, 201, 225, 352)."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    group_retry_policy: GroupRetryPolicy | None = msgspec.field(default_factory=GroupRetryPolicy)
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 = 0
    consume_timeout_minute: Int32 = 15
    subscription_data_set: list[SimpleSubscriptionData] | None = None
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


class SubscriptionGroupList(Body, kw_only=True):
    """Groups to create or change in one request (225)."""

    group_config_list: list[SubscriptionGroupConfig] = msgspec.field(default_factory=list)


class GroupForbidden(Body, kw_only=True):
    """Whether a group may read a topic (353)."""

    group: str | None = None
    topic: str | None = None
    readable: bool | None = None
