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
a group that was created at the slave       200   sent to the master
an offset that grew at the slave            15    sent to the master
==========================================  ====  =================================================

A page is requested with the version that the first one had. If the table changes meanwhile, the
answer has another version and begins at the first entry again. An answer without a total holds the
whole table: a master of 4.x knows no pages.

Counterpart of the part of Java's ``BrokerOuterAPI`` that ``SlaveSynchronize`` calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from skylark.broker.slave.slave_changes import Commit
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

#: Entries of one page, as Java requests.
PAGE_SIZE: Final = 2_000
#: More pages are a fault of the master: this is a million topics, and some changes meanwhile.
PAGES_MAX: Final = 1_000

T = TypeVar("T")
Entry = TypeVar("Entry")

#: Sends a request to the master and returns the answer, which may have any code.
Ask = Callable[[Command], Awaitable[Command]]
#: Requests the page from an entry number on, of a version (as JSON, empty at first): its entries,
#: its version, and how many entries the table has.
GetPage = Callable[[int, str], Awaitable[tuple[dict[str, Entry], DataVersion, int | None]]]


class Topics(NamedTuple):
    """The topics of a master, and their version."""

    table: dict[str, TopicConfig]
    version: DataVersion


class Groups(NamedTuple):
    """The groups of a master, what they may not read, and their version."""

    table: dict[str, SubscriptionGroupConfig]
    bans: dict[str, dict[str, int]]
    version: DataVersion


async def get_topics(ask: Ask) -> Topics:
    """GET_ALL_TOPIC_CONFIG (21)."""

    async def get_page(
        first: int, version: str
    ) -> tuple[dict[str, TopicConfig], DataVersion, int | None]:
        header = GetAllTopicConfigRequestHeader(
            topic_seq=first, data_version=version, max_topic_num=PAGE_SIZE
        )
        answer = await _answer(ask, RequestCode.GET_ALL_TOPIC_CONFIG, header)
        page = _body(TopicConfigAndMappingSerializeWrapper, answer)
        total = decode_ext(GetAllTopicConfigResponseHeader, answer.ext).total_topic_num
        return page.topic_config_table, page.data_version, total

    return Topics(*await _get_pages("topics", get_page))


async def get_groups(ask: Ask) -> Groups:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""
    bans: dict[str, dict[str, int]] = {}

    async def get_page(
        first: int, version: str
    ) -> tuple[dict[str, SubscriptionGroupConfig], DataVersion, int | None]:
        header = GetAllSubscriptionGroupRequestHeader(
            group_seq=first, data_version=version, max_group_num=PAGE_SIZE
        )
        answer = await _answer(ask, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, header)
        page = _body(SubscriptionGroupWrapper, answer)
        if encode_body(page.data_version).decode() != version:
            bans.clear()  # of another version of the table
        bans.update(page.forbidden_table)
        total = decode_ext(GetAllSubscriptionGroupResponseHeader, answer.ext).total_group_num
        return page.subscription_group_table, page.data_version, total

    table, version = await _get_pages("groups", get_page)
    return Groups(table, bans, version)


async def _get_pages(name: str, get_page: GetPage[Entry]) -> tuple[dict[str, Entry], DataVersion]:
    """All pages of a table; begins again if the table changes meanwhile."""
    table: dict[str, Entry] = {}
    version: DataVersion | None = None
    for _ in range(PAGES_MAX):
        text = "" if version is None else encode_body(version).decode()
        entries, page_version, total = await get_page(len(table), text)
        if version != page_version:
            table, version = {}, page_version
        table.update(entries)
        if total is None or len(table) >= total or not entries:
            return table, version
    raise RemoteProtocolError(f"the {name} of the master do not end after {PAGES_MAX} pages")


async def get_offsets(ask: Ask) -> ConsumerOffsetSerializeWrapper:
    """GET_ALL_CONSUMER_OFFSET (43)."""
    answer = await _answer(ask, RequestCode.GET_ALL_CONSUMER_OFFSET)
    return _body(ConsumerOffsetSerializeWrapper, answer)


async def send_group(ask: Ask, group: SubscriptionGroupConfig) -> None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200); raises BrokerError if the master refuses."""
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    _checked(await ask(Command(code=code, body=encode_body(group))))


async def send_commit(ask: Ask, commit: Commit) -> None:
    """UPDATE_CONSUMER_OFFSET (15); raises BrokerError if the master refuses."""
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=commit.group,
        topic=commit.topic,
        queue_id=commit.queue_id,
        commit_offset=commit.offset,
    )
    await _answer(ask, RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def get_delay_offsets(ask: Ask) -> DelayOffsetTable:
    """GET_ALL_DELAY_OFFSET (45)."""
    return _body(DelayOffsetTable, await _answer(ask, RequestCode.GET_ALL_DELAY_OFFSET))


async def get_request_modes(ask: Ask) -> MessageRequestModeTable:
    """GET_ALL_MESSAGE_REQUEST_MODE (402)."""
    answer = await _answer(ask, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    return _body(MessageRequestModeTable, answer)


async def get_timer_checkpoint(ask: Ask) -> TimerCheckpoint:
    """GET_TIMER_CHECK_POINT (60)."""
    answer = await _answer(ask, RequestCode.GET_TIMER_CHECK_POINT)
    return TimerCheckpoint.decode(answer.body or b"")


async def get_timer_counts(ask: Ask) -> TimerMetricsTable:
    """GET_TIMER_METRICS (61)."""
    return _body(TimerMetricsTable, await _answer(ask, RequestCode.GET_TIMER_METRICS))


async def get_log_end(ask: Ask) -> int:
    """GET_BROKER_HA_STATUS (907): where the log of the master ends; 0 if it does not know 907."""
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
