"""The requests by which a slave copies the tables of its master, each as one function.

==========================================  ====  =================================================
topics                                      21    in pages; ``totalTopicNum`` says when it is all
consumer offsets                            43
progress of delay levels                    45
groups                                      201   in pages, as the topics
how groups get their messages               402
state of the timer                          60    56 bytes, not JSON
messages that wait in the timer, by topic   61
state of replication: where the log ends    907
a group that was born at the slave          200   told, not asked
an offset that grew at the slave            15    told, not asked
==========================================  ====  =================================================

A page is asked for with the version that the first one had. If the table changes meanwhile, the
answer has another version and begins at the first entry again. An answer without total is whole:
a master of 4.x knows no pages.

Answers to the part of ``BrokerOuterAPI`` that ``SlaveSynchronize`` calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from skylark.broker.slave.slave_commits import Commit
from skylark.core.errors import RemoteProtocolError, broker_error
from skylark.store.config_tables import (
    DelayOffsetTable,
    MessageRequestModeTable,
    TimerMetricsTable,
)
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.bodies.ha_body import HARuntimeInfo
from skylark.wire.bodies.slave_sync_body import (
    ConsumerOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TimerCheckpoint,
    TopicConfigAndMappingSerializeWrapper,
)
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.fields import Header, decode_ext, encode_ext
from skylark.wire.headers.ha import (
    GetAllSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupResponseHeader,
    GetAllTopicConfigRequestHeader,
    GetAllTopicConfigResponseHeader,
)
from skylark.wire.headers.offset import UpdateConsumerOffsetRequestHeader

#: Entries of one page, as Java asks for.
PAGE_SIZE: Final = 2_000
#: Pages until somebody must be joking: a million topics, and some changes meanwhile.
PAGES_MAX: Final = 1_000

T = TypeVar("T")

#: Sends a request to the master and returns the answer, whatever its code.
Ask = Callable[[Command], Awaitable[Command]]


class Topics(NamedTuple):
    """The topics of a master, and their version."""

    table: dict[str, TopicConfig]
    version: DataVersion


class Groups(NamedTuple):
    """The groups of a master, what they may not read, and their version."""

    table: dict[str, SubscriptionGroupConfig]
    bans: dict[str, dict[str, int]]
    version: DataVersion


async def topics(ask: Ask) -> Topics:
    """GET_ALL_TOPIC_CONFIG (21)."""
    found: Topics | None = None
    for _ in range(PAGES_MAX):
        header = GetAllTopicConfigRequestHeader(
            topic_seq=0 if found is None else len(found.table),
            data_version="" if found is None else encode_body(found.version).decode(),
            max_topic_num=PAGE_SIZE,
        )
        answer = await _answer(ask, RequestCode.GET_ALL_TOPIC_CONFIG, header)
        page = _body(TopicConfigAndMappingSerializeWrapper, answer)
        if found is None or found.version != page.data_version:
            found = Topics({}, page.data_version)
        found.table.update(page.topic_config_table)
        total = decode_ext(GetAllTopicConfigResponseHeader, answer.ext).total_topic_num
        if _is_whole(len(found.table), len(page.topic_config_table), total):
            return found
    raise RemoteProtocolError(f"the topics of the master do not end after {PAGES_MAX} pages")


async def groups(ask: Ask) -> Groups:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""
    found: Groups | None = None
    for _ in range(PAGES_MAX):
        header = GetAllSubscriptionGroupRequestHeader(
            group_seq=0 if found is None else len(found.table),
            data_version="" if found is None else encode_body(found.version).decode(),
            max_group_num=PAGE_SIZE,
        )
        answer = await _answer(ask, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, header)
        page = _body(SubscriptionGroupWrapper, answer)
        if found is None or found.version != page.data_version:
            found = Groups({}, {}, page.data_version)
        found.table.update(page.subscription_group_table)
        found.bans.update(page.forbidden_table)
        total = decode_ext(GetAllSubscriptionGroupResponseHeader, answer.ext).total_group_num
        if _is_whole(len(found.table), len(page.subscription_group_table), total):
            return found
    raise RemoteProtocolError(f"the groups of the master do not end after {PAGES_MAX} pages")


async def offsets(ask: Ask) -> ConsumerOffsetSerializeWrapper:
    """GET_ALL_CONSUMER_OFFSET (43)."""
    answer = await _answer(ask, RequestCode.GET_ALL_CONSUMER_OFFSET)
    return _body(ConsumerOffsetSerializeWrapper, answer)


async def tell_group(ask: Ask, group: SubscriptionGroupConfig) -> None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200); raises BrokerError if the master refuses."""
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    _checked(await ask(Command(code=code, body=encode_body(group))))


async def tell_commit(ask: Ask, commit: Commit) -> None:
    """UPDATE_CONSUMER_OFFSET (15); raises BrokerError if the master refuses."""
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=commit.group,
        topic=commit.topic,
        queue_id=commit.queue_id,
        commit_offset=commit.offset,
    )
    await _answer(ask, RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def delays(ask: Ask) -> DelayOffsetTable:
    """GET_ALL_DELAY_OFFSET (45)."""
    return _body(DelayOffsetTable, await _answer(ask, RequestCode.GET_ALL_DELAY_OFFSET))


async def request_modes(ask: Ask) -> MessageRequestModeTable:
    """GET_ALL_MESSAGE_REQUEST_MODE (402)."""
    answer = await _answer(ask, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    return _body(MessageRequestModeTable, answer)


async def timer_checkpoint(ask: Ask) -> TimerCheckpoint:
    """GET_TIMER_CHECK_POINT (60)."""
    answer = await _answer(ask, RequestCode.GET_TIMER_CHECK_POINT)
    return TimerCheckpoint.decode(answer.body or b"")


async def timer_counts(ask: Ask) -> TimerMetricsTable:
    """GET_TIMER_METRICS (61)."""
    return _body(TimerMetricsTable, await _answer(ask, RequestCode.GET_TIMER_METRICS))


async def log_end(ask: Ask) -> int:
    """GET_BROKER_HA_STATUS (907): where the log of the master ends; 0 if it cannot say."""
    answer = await ask(Command(code=RequestCode.GET_BROKER_HA_STATUS))
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return 0
    return _body(HARuntimeInfo, _checked(answer)).master_commit_log_max_offset


async def _answer(ask: Ask, code: RequestCode, header: Header | None = None) -> Command:
    ext = None if header is None else encode_ext(header)
    return _checked(await ask(Command(code=code, ext=ext)))


def _checked(answer: Command) -> Command:
    if answer.code != ResponseCode.SUCCESS:
        raise broker_error(answer.code, answer.remark or f"code {answer.code}")
    return answer


def _body(body_type: type[T], answer: Command) -> T:
    return decode_body(body_type, answer.body or b"{}")


def _is_whole(count: int, page_count: int, total: int | None) -> bool:
    return total is None or count >= total or not page_count
