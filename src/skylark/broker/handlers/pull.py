"""Pulls (11, 361): read a queue from an offset on, or wait until there is something to read.

Hot: called while the bytes are being read. The checks come in Java's order; every refusal has an
ext map, empty or with what forbids reading (``forbiddenType``). The filter comes with the request
(sysFlag 4) or from the group's heartbeats. As in Java, an SQL expression that comes with the
request and does not compile lets every message pass: clients ask beforehand (46).

**Answer.** Code and remark follow from what the read found. The body is the records as they stand
in the log. They are copied once, so the lease on the log's files ends before the answer is on its
way.

**Waiting.** A pull that finds the end of its queue and may wait (sysFlag 2) is parked
(:mod:`skylark.broker.long_polling`). :meth:`PullHandlers.arrived` is told of each message that can
be read. Who waits for it is woken in the next turn of the loop, when the producers of this turn
have their answers; then the whole request runs again, and is answered whatever it finds.

**Commit.** A pull may bring the offset that its group has consumed (sysFlag 1). It counts once,
when the request comes, not when it is woken; and not if the group has just been sent elsewhere
(222), which the pull is told with code 21.

``bulk=true`` is an extension of ours: only ``maxMsgNums``, ``maxMsgBytes`` and ``pullMaxBytes``
then limit an answer. Not supported: offsets of broadcast consumers that change between broker and
proxy.

Answers to ``PullMessageProcessor`` and ``DefaultPullMessageResultHandler``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from skylark.broker.consumers import ConsumerTable
from skylark.broker.filters import ConsumerFilterTable
from skylark.broker.groups import GroupTable
from skylark.broker.handlers.answers import FAQ_HINT
from skylark.broker.live_settings import LiveSettings
from skylark.broker.long_polling import HeldPulls
from skylark.broker.offsets import OffsetTable
from skylark.broker.stats import BrokerStats
from skylark.broker.store_stats import StoreStats
from skylark.broker.topics import TopicTable
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import (
    BrokerError,
    InvalidParameterError,
    NoPermissionError,
    StoreError,
    SubscriptionGroupNotExistError,
    SystemBusyError,
    TopicNotExistError,
)
from skylark.core.names import Address, is_retry_topic
from skylark.filter.errors import FilterSyntaxError
from skylark.filter.sql_eval import SqlFilter, compile_sql
from skylark.filter.tag import TagFilter, parse_tags
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher, error_response
from skylark.store.message_store import MessageStore
from skylark.store.queue_scan import PropertyMatcher
from skylark.store.reader import SIZE_MAX, GetResult
from skylark.store.reput import Arrival
from skylark.store.results import GetStatus
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.bodies.heartbeat import SubscriptionData
from skylark.wire.codes import Perm, PullSysFlag, RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fields import decode_ext, encode_ext
from skylark.wire.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from skylark.wire.properties import PROPERTY_RETRY_TOPIC, find_raw_property

log = logging.getLogger(__name__)

OFFSET_RESET: Final = "OFFSET_RESET"  # remark of an answer that carries out a reset
PULL_BYTES_MIN: Final = 100  # as in Java, however little the client asks for
_TAG_TYPES: Final = (None, "", "TAG")
_RETRY_TOPIC: Final = PROPERTY_RETRY_TOPIC.encode()

# What forbids reading, in an answer with code 16
FORBIDDEN_BY_BROKER: Final = 1
FORBIDDEN_BY_GROUP: Final = 2
FORBIDDEN_BY_TOPIC: Final = 3
FORBIDDEN_BROADCAST: Final = 4
FORBIDDEN_BY_SUBSCRIPTION: Final = 5


class PullForbiddenError(NoPermissionError):
    """Reading is forbidden, by what ``forbidden_type`` says."""

    def __init__(self, remark: str, forbidden_type: int) -> None:
        super().__init__(remark)
        self.forbidden_type = forbidden_type


class HeldPull(NamedTuple):
    """What is needed to run a held pull again."""

    connection: Connection
    request: Command


class _Filter(NamedTuple):
    """Which messages a pull wants: by tag, by properties, or all."""

    tags: TagFilter | None = None
    sql: SqlFilter | None = None
    retried: PropertyMatcher | None = None  # in place of ``sql``, in a retry topic


class _RetriedFilter:
    """Filters a retry topic: each message by its group's filter on the topic it came from."""

    def __init__(self, filters: ConsumerFilterTable, group: str) -> None:
        self._filters = filters
        self._group = group

    def matches_raw(self, raw: bytes) -> bool:
        topic = find_raw_property(raw, _RETRY_TOPIC)
        found = topic and self._filters.get(topic.decode("utf-8", "replace"), self._group)
        return not found or found.sql.matches_raw(raw)


class PullHandlers:
    """The requests that read queues; owns the pulls that wait."""

    def __init__(
        self,
        live: LiveSettings,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        consumers: ConsumerTable,
        filters: ConsumerFilterTable,
        stats: BrokerStats,
        store_stats: StoreStats,
        clock: Clock,
        steady_ms: Callable[[], int],
    ) -> None:
        """``steady_ms`` is the time by which clients expire (``ClientLiveness.now_ms``)."""
        self._live = live
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._filters = filters
        self._stats = stats
        self._store_stats = store_stats
        self._clock = clock
        self._steady_ms = steady_ms
        self.held: HeldPulls[HeldPull] = HeldPulls(count_max=live.current.held_pull_count_max)
        self._timer: TimerHandle | None = None
        self._timer_due_ms = 0
        self._arrivals: list[Arrival] = []
        self._stopping = False

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""
        dispatcher.add_hot(RequestCode.PULL_MESSAGE, self.pull)
        dispatcher.add_hot(RequestCode.LITE_PULL_MESSAGE, self.pull)

    def pull(self, connection: Connection, request: Command) -> Command | None:
        """PULL_MESSAGE (11), LITE_PULL_MESSAGE (361)."""
        header = decode_ext(PullMessageRequestHeader, request.ext)
        return self._run(connection, request, header, is_first=True)

    def _run(
        self,
        connection: Connection,
        request: Command,
        header: PullMessageRequestHeader,
        *,
        is_first: bool,
    ) -> Command | None:
        try:
            return self._pull(connection, request, header, is_first=is_first)
        except PullForbiddenError as error:
            ext = {"forbiddenType": str(error.forbidden_type)}
            return response_to(request, error.code, str(error), ext=ext)
        except BrokerError as error:
            return response_to(request, error.code, str(error), ext={})

    def _pull(
        self,
        connection: Connection,
        request: Command,
        header: PullMessageRequestHeader,
        *,
        is_first: bool,
    ) -> Command | None:
        group = self._check_group(request.code, header)
        topic = self._check_topic(connection, header)
        wanted = self._filter(header, group)
        group_name, topic_name, queue_id = header.consumer_group, header.topic, header.queue_id
        reset = self._offsets.take_reset(group_name, topic_name, queue_id)
        if reset is not None:
            return self._moved(request, header, topic, group, reset)
        result = self._read(header, wanted)
        try:
            code = result.status.pull_code(header.queue_offset)
            self._offsets.commit_pulled(group_name, topic_name, queue_id, result.next_offset)
            if is_first and header.sys_flag & PullSysFlag.COMMIT_OFFSET:
                self._commit(header)
            if (
                code == ResponseCode.PULL_NOT_FOUND
                and is_first
                and header.sys_flag & PullSysFlag.SUSPEND
                and not self._stopping
            ):
                self._park(connection, request, header, wanted, result.max_offset)
                return None
            self._count(header, result)
            slow = self._live.current.slave_read_enable and result.suggest_slave
            response_header = PullMessageResponseHeader(
                suggest_which_broker_id=self._suggested(group, is_slow=slow),
                next_begin_offset=result.next_offset,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
                topic_sys_flag=topic.topic_sys_flag,
                group_sys_flag=group.group_sys_flag,
            )
            body = b"".join(result.views) if result.views else None
        finally:
            result.release()
        ext = encode_ext(response_header)
        return response_to(request, code, result.status.name, ext=ext, body=body)

    # --- checks -----------------------------------------------------------------------------------

    def _check_group(self, code: int, header: PullMessageRequestHeader) -> SubscriptionGroupConfig:
        config = self._live.current
        if not config.broker_permission & Perm.READ:
            remark = f"the broker[{config.broker_ip1}] pulling message is forbidden"
            raise PullForbiddenError(remark, FORBIDDEN_BY_BROKER)
        if code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull_message_enable:
            remark = f"the broker[{config.broker_ip1}] for lite pull consumer is forbidden"
            raise PullForbiddenError(remark, FORBIDDEN_BY_BROKER)
        group = self._groups.find(header.consumer_group)
        if group is None:
            raise SubscriptionGroupNotExistError(
                f"subscription group [{header.consumer_group}] does not exist, {FAQ_HINT}"
            )
        if not group.consume_enable:
            remark = f"subscription group no permission, {header.consumer_group}"
            raise PullForbiddenError(remark, FORBIDDEN_BY_GROUP)
        return group

    def _check_topic(self, connection: Connection, header: PullMessageRequestHeader) -> TopicConfig:
        topic = self._topics.get(header.topic)
        if topic is None:
            raise TopicNotExistError(
                f"topic[{header.topic}] not exist, apply first please! {FAQ_HINT}"
            )
        if not topic.perm & Perm.READ:
            remark = f"the topic[{header.topic}] pulling message is forbidden"
            raise PullForbiddenError(remark, FORBIDDEN_BY_TOPIC)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise InvalidParameterError(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
                f" topicConfig.readQueueNums:[{topic.read_queue_nums}]"
                f" consumer:[/{Address(*connection.remote_address)}]"
            )
        return topic

    # --- filters ----------------------------------------------------------------------------------

    def _filter(self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig) -> _Filter:
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            found = self._own_filter(header)
        else:
            found = self._heartbeat_filter(header, group)
        if (
            self._live.current.filter_support_retry
            and found.sql is None
            and is_retry_topic(header.topic)
        ):
            return _Filter(found.tags, None, _RetriedFilter(self._filters, header.consumer_group))
        return found

    def _own_filter(self, header: PullMessageRequestHeader) -> _Filter:
        """The filter that the request brings."""
        text, kind = header.subscription or "", header.expression_type
        data = SubscriptionData(
            topic=header.topic,
            sub_string=text or "*",
            sub_version=header.sub_version,
            expression_type=kind or "TAG",
        )
        if kind in _TAG_TYPES:
            try:
                tags = parse_tags(text)
            except FilterSyntaxError as error:
                raise BrokerError(
                    "parse the consumer's subscription failed", code=error.code, hint=str(error)
                ) from error
            data.tags_set = list(tags.tags)
            data.code_set = sorted(tags.codes or ())
            self._remember(header, data)
            return _Filter(tags)
        self._remember(header, data)
        self._check_property_filter(kind)
        try:
            return _Filter(sql=compile_sql(text))
        except FilterSyntaxError as error:
            log.debug("pull of %s on %s: %s", header.consumer_group, header.topic, error)
            return _Filter()

    def _remember(self, header: PullMessageRequestHeader, data: SubscriptionData) -> None:
        self._consumers.compensate(header.consumer_group, data, self._steady_ms())

    def _heartbeat_filter(
        self, header: PullMessageRequestHeader, config: SubscriptionGroupConfig
    ) -> _Filter:
        """The filter that the members of the group have told in their heartbeats."""
        name, topic = header.consumer_group, header.topic
        group = self._consumers.group(name)
        if group is None:
            raise BrokerError(
                f"the consumer's group info not exist{FAQ_HINT}",
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if group.is_broadcasting and not config.consume_broadcast_enable:
            remark = f"the consumer group[{name}] can not consume by broadcast way"
            raise PullForbiddenError(remark, FORBIDDEN_BROADCAST)
        if not self._groups.may_read(name, topic):
            remark = f"the consumer group[{name}] is forbidden for topic[{topic}]"
            raise PullForbiddenError(remark, FORBIDDEN_BY_SUBSCRIPTION)
        data = group.subscriptions.get(topic)
        if data is None:
            raise BrokerError(
                f"the consumer's subscription not exist{FAQ_HINT}",
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if data.sub_version < header.sub_version:
            raise BrokerError(
                "the consumer's subscription not latest", code=ResponseCode.SUBSCRIPTION_NOT_LATEST
            )
        if data.expression_type in _TAG_TYPES:
            return _Filter(TagFilter.of_subscription(data.sub_string, data.code_set))
        found = self._filters.get(topic, name)
        if found is None:
            raise BrokerError(
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
                code=ResponseCode.FILTER_DATA_NOT_EXIST,
            )
        if found.client_version < header.sub_version:
            raise BrokerError(
                "the consumer's consumer filter data not latest",
                code=ResponseCode.FILTER_DATA_NOT_LATEST,
            )
        self._check_property_filter(data.expression_type)
        return _Filter(sql=found.sql)

    def _check_property_filter(self, kind: str | None) -> None:
        if not self._live.current.enable_property_filter:
            raise BrokerError(
                f"The broker does not support consumer to filter message by {kind}",
                hint="set enablePropertyFilter=true",
            )

    # --- reading ----------------------------------------------------------------------------------

    def _read(self, header: PullMessageRequestHeader, wanted: _Filter) -> GetResult:
        bytes_max = SIZE_MAX
        if header.max_msg_bytes is not None:
            bytes_max = max(header.max_msg_bytes, PULL_BYTES_MIN)
        bulk = header.bulk or False
        if bulk:
            bytes_max = min(bytes_max, self._live.current.pull_max_bytes)
        try:
            return self._store.reader.get(
                header.topic,
                header.queue_id,
                header.queue_offset,
                max(1, header.max_msg_nums),
                wanted.tags,
                wanted.retried if wanted.sql is None else wanted.sql,
                bytes_max=bytes_max,
                bulk=bulk,
            )
        except StoreError as error:
            raise BrokerError("store getMessage return null", hint=str(error)) from error

    def _suggested(self, group: SubscriptionGroupConfig, *, is_slow: bool) -> int:
        """The broker to ask next time, by its id."""
        if not self._live.current.slave_read_enable:
            return 0
        return group.which_broker_when_consume_slowly if is_slow else group.broker_id

    def _moved(
        self,
        request: Command,
        header: PullMessageRequestHeader,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
        offset: int,
    ) -> Command:
        """The group was sent elsewhere, and hears it now."""
        reader = self._store.reader
        response_header = PullMessageResponseHeader(
            suggest_which_broker_id=self._suggested(group, is_slow=False),
            next_begin_offset=offset,
            min_offset=reader.min_offset(header.topic, header.queue_id),
            max_offset=reader.max_offset(header.topic, header.queue_id),
            topic_sys_flag=topic.topic_sys_flag,
            group_sys_flag=group.group_sys_flag,
        )
        ext = encode_ext(response_header)
        return response_to(request, ResponseCode.PULL_OFFSET_MOVED, OFFSET_RESET, ext=ext)

    def _commit(self, header: PullMessageRequestHeader) -> None:
        if header.commit_offset >= 0:
            self._offsets.commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )

    def _count(self, header: PullMessageRequestHeader, result: GetResult) -> None:
        store_stats = self._store_stats
        if result.status is not GetStatus.FOUND:
            store_stats.missed_count += 1
            return
        store_stats.found_count += 1
        store_stats.transferred_count += result.message_count
        self._stats.got(
            header.topic,
            header.consumer_group,
            result.message_count,
            result.size,
            is_system=self._topics.is_system(header.topic),
        )

    # --- waiting ----------------------------------------------------------------------------------

    def _park(
        self,
        connection: Connection,
        request: Command,
        header: PullMessageRequestHeader,
        wanted: _Filter,
        max_offset: int,
    ) -> None:
        config = self._live.current
        wait_ms = header.suspend_timeout_millis
        if not config.long_polling_enable:
            wait_ms = config.short_polling_time_mills
        now_ms = self._now_ms()
        parked = self.held.park(
            header.topic,
            header.queue_id,
            HeldPull(connection, request),
            connection=connection,
            offset=header.queue_offset,
            max_offset=max_offset,
            now_ms=now_ms,
            deadline_ms=now_ms + max(0, wait_ms),
            tags=wanted.tags,
            sql=wanted.sql,
        )
        if not parked:
            raise SystemBusyError(
                "too many pulls are held", hint="repeat later, or raise heldPullCountMax"
            )
        self._arm()

    def arrived(self, arrival: Arrival) -> None:
        """A message can be read from now on; hook for the store."""
        if self.held.has_waiters(arrival.topic, arrival.queue_id):
            if not self._arrivals:
                asyncio.get_running_loop().call_soon(self._wake)
            self._arrivals.append(arrival)

    def _wake(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        now_ms = self._now_ms()
        for arrival in arrivals:
            woken = self.held.arrived(
                arrival.topic,
                arrival.queue_id,
                arrival.next_offset,
                now_ms,
                arrival.tags_code,
                arrival.properties,
            )
            self._run_again(woken)
        self._arm()

    def _run_again(self, woken: Iterable[HeldPull]) -> None:
        for connection, request in woken:
            if connection.is_closing:
                continue
            try:
                header = decode_ext(PullMessageRequestHeader, request.ext)
                response = self._run(connection, request, header, is_first=False)
            except Exception as error:  # noqa: BLE001 - becomes code 1; the others are woken as well
                response = error_response(request, error)
            if response is not None:
                connection.reply(request, response)

    def _arm(self) -> None:
        """Have one timer run at the first due time of all held pulls."""
        due_ms = self.held.next_due()
        if self._timer is not None:
            if due_ms is not None and self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
            self._timer = None
        if due_ms is not None:
            self._timer_due_ms = due_ms
            self._timer = self._clock.call_at(due_ms / 1000, self._due)

    def _due(self) -> None:
        self._timer = None
        # A timer may fire a fraction of a millisecond early: what was due counts as due.
        self._run_again(self.held.take_due(max(self._now_ms(), self._timer_due_ms)))
        self._arm()

    def forget(self, connection: Connection) -> None:
        """A connection has ended."""
        self.held.drop(connection)

    def stop(self) -> None:
        """Answer all that wait, and let nobody wait any more."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._run_again(self.held.wake_all())

    def _now_ms(self) -> int:
        """Steady time: held pulls do not notice a step of the wall clock."""
        return round(self._clock.monotonic() * 1000)
