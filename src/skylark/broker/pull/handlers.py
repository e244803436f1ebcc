"""Pulls (11, 361): read a queue from an offset on, or wait until there is something to read.

Hot: called while the bytes are being read. The checks come in Java's order; every refusal has an
ext map, empty or with what forbids reading (``forbiddenType``). Which messages are wanted is found
in :mod:`skylark.broker.pull.pull_filters`.

**Answer.** Code and remark follow from what the read found. The body is the records as they stand
in the log: views of its files, leased until they are written (:mod:`skylark.net.write_queue`). If
they are few bytes, a frame with their copy.

**Waiting.** A pull that finds the end of its queue and may wait (sysFlag 2) is parked
(:mod:`skylark.broker.pull.long_polling`). :meth:`PullHandlers.arrived` is told of each message that
can be read. Who waits for it is woken in the next turn of the loop, when the producers of this turn
have their answers, a number of pulls per turn; then the whole request runs again, and is answered
whatever it finds. The pull of a client that does not read what it got before is woken when it has:
a message may wake hundreds of pulls of one connection.

**Commit.** A pull may bring the offset that its group has consumed (sysFlag 1). It counts once,
when the request comes, not when it is woken; and not if the group has just been sent elsewhere
(222), which the pull is told with code 21. In the same way a broadcast consumer that comes another
way than before is told where it was (:mod:`skylark.broker.groups.broadcast_offsets`).

**Slaves** serve pulls with ``slaveReadEnable``. As long as there is a master they send clients back
to it who are not far behind, with 20 where they have nothing themselves.

``bulk=true`` is an extension of ours: only ``maxMsgNums``, ``maxMsgBytes`` and ``pullMaxBytes``
then limit an answer. Answers to ``PullMessageProcessor``, ``DefaultPullMessageResultHandler`` and
``PullRequestHoldService``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from skylark.broker.config import MASTER_ID
from skylark.broker.groups.broadcast_offsets import BroadcastOffsets
from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.pull.long_polling import HeldPulls
from skylark.broker.pull.pull_filters import (
    FORBIDDEN_BY_BROKER,
    FORBIDDEN_BY_GROUP,
    FORBIDDEN_BY_TOPIC,
    PullFilter,
    PullFilters,
    PullForbiddenError,
)
from skylark.broker.pull.pull_replies import found_frame, position_ext
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.stats.store_stats import StoreStats
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import (
    BrokerError,
    InvalidParameterError,
    StoreError,
    SubscriptionGroupNotExistError,
    SystemBusyError,
    TopicNotExistError,
)
from skylark.core.names import Address
from skylark.net.connection import Connection
from skylark.net.dispatch import LATER, Answer, Dispatcher, error_response
from skylark.net.success_response import FAQ_HINT
from skylark.net.write_queue import view_response
from skylark.store.config import FlushDiskType
from skylark.store.consume_queue import EntryQueue
from skylark.store.message_reader import SIZE_MAX, GetResult
from skylark.store.message_store import MessageStore
from skylark.store.queue_scan import COPIED_SIZE_MAX
from skylark.store.reput import Arrival
from skylark.store.store_results import GetStatus
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.codes import Perm, PullSysFlag, RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.headers.pull import PullMessageRequestHeader

OFFSET_RESET: Final = "OFFSET_RESET"  # remark of an answer that carries out a reset
PULL_BYTES_MIN: Final = 100  # as in Java, however little the client asks for
WAKES_PER_TURN: Final = 64
#: Messages up to this size in all are copied into the frame of the answer.
FRAME_BODY_MAX: Final = COPIED_SIZE_MAX

# As plain numbers: members of an enumeration are found more slowly.
_READ: Final = int(Perm.READ)
_COMMIT_OFFSET: Final = int(PullSysFlag.COMMIT_OFFSET)
_SUSPEND: Final = int(PullSysFlag.SUSPEND)
_SUCCESS: Final = int(ResponseCode.SUCCESS)
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_LITE_PULL: Final = int(RequestCode.LITE_PULL_MESSAGE)
_FOUND: Final = GetStatus.FOUND


class HeldPull(NamedTuple):
    """What is needed to run a held pull again."""

    connection: Connection
    request: Command
    header: PullMessageRequestHeader


class PullHandlers:
    """The requests that read queues; owns the pulls that wait."""

    def __init__(
        self,
        live: LiveSettings,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        filters: PullFilters,
        broadcasts: BroadcastOffsets,
        stats: BrokerStats,
        store_stats: StoreStats,
        clock: Clock,
        *,
        has_master: Callable[[], bool],
        at_work: Callable[[float], object],
    ) -> None:
        """``has_master`` is asked of a slave; ``at_work`` hears that a turn of the loop works."""
        self._live = live
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._filters = filters
        self._broadcasts = broadcasts
        self._stats = stats
        self._store_stats = store_stats
        self._clock = clock
        self._has_master = has_master
        self._at_work = at_work
        #: Told of each pull that begins to wait.
        self.on_held: Callable[[Command], None] | None = None
        self.held: HeldPulls[HeldPull] = HeldPulls(count_max=live.current.held_pull_count_max)
        #: The queues whose messages :meth:`arrived` wants to hear of, by topic and queue id.
        self.awaited = self.held.queues
        self._timer: TimerHandle | None = None
        self._timer_due_ms = 0
        self._arrivals: list[Arrival] = []
        self._woken: deque[HeldPull] = deque()
        self._answers_later = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._stopping = False

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""
        dispatcher.add_hot(RequestCode.PULL_MESSAGE, self.pull)
        dispatcher.add_hot(RequestCode.LITE_PULL_MESSAGE, self.pull)

    def pull(self, connection: Connection, request: Command) -> Answer | bytes:
        """PULL_MESSAGE (11), LITE_PULL_MESSAGE (361)."""
        header = request.header(PullMessageRequestHeader)
        return self._run(connection, request, header, is_first=True)

    def _run(
        self,
        connection: Connection,
        request: Command,
        header: PullMessageRequestHeader,
        *,
        is_first: bool,
    ) -> Answer | bytes:
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
    ) -> Answer | bytes:
        began_at = self._clock.monotonic()
        group = self._check_group(request.code, header)
        topic = self._check_topic(connection, header)
        wanted = self._filters.find(header, group)
        if self._live.current.reject_pull_consumer_enable:
            self._filters.check_consumer(connection, header)
        group_name, topic_name, queue_id = header.consumer_group, header.topic, header.queue_id
        broadcast_id = self._broadcasts.client_id(connection, header)
        moved_to = self._offsets.take_reset(group_name, topic_name, queue_id)
        if moved_to is None and broadcast_id is not None:
            moved_to = self._broadcasts.moved_to(broadcast_id, header)
        if moved_to is not None:
            if broadcast_id is not None:
                moved = ResponseCode.PULL_OFFSET_MOVED
                self._broadcasts.pulled(broadcast_id, header, moved, moved_to)
            return self._moved(request, header, topic, group, moved_to)
        result = self._read(header, wanted)
        try:
            code, suggested_id = self._verdict(header, group, result)
            self._offsets.commit_pulled(group_name, topic_name, queue_id, result.next_offset)
            if is_first and header.sys_flag & _COMMIT_OFFSET:
                self._commit(header)
            if broadcast_id is not None:
                self._broadcasts.pulled(broadcast_id, header, code, result.next_offset)
            if (
                code == _NOT_FOUND
                and is_first
                and header.sys_flag & _SUSPEND
                and not self._stopping
            ):
                self._park(connection, request, header, wanted, result.max_offset)
                result.release()
                return LATER
            self._count(header, result, began_at)
            if code == _SUCCESS and result.size <= FRAME_BODY_MAX and connection.takes_frames:
                return found_frame(request, suggested_id, result, topic, group)
            bounds = result.min_offset, result.max_offset
            ext = position_ext(suggested_id, result.next_offset, *bounds, topic, group)
        except BaseException:
            result.release()
            raise
        return view_response(request, code, result.status.remark, ext=ext, leased=result)

    # --- checks -----------------------------------------------------------------------------------

    def _check_group(self, code: int, header: PullMessageRequestHeader) -> SubscriptionGroupConfig:
        config = self._live.current
        if not config.broker_permission & _READ:
            remark = f"the broker[{config.broker_ip1}] pulling message is forbidden"
            raise PullForbiddenError(remark, FORBIDDEN_BY_BROKER)
        if code == _LITE_PULL and not config.lite_pull_message_enable:
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
        if not topic.perm & _READ:
            remark = f"the topic[{header.topic}] pulling message is forbidden"
            raise PullForbiddenError(remark, FORBIDDEN_BY_TOPIC)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise InvalidParameterError(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
                f" topicConfig.readQueueNums:[{topic.read_queue_nums}]"
                f" consumer:[/{Address(*connection.remote_address)}]"
            )
        return topic

    # --- reading ----------------------------------------------------------------------------------

    def _read(self, header: PullMessageRequestHeader, wanted: PullFilter) -> GetResult:
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

    def _verdict(
        self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig, result: GetResult
    ) -> tuple[ResponseCode, int]:
        """The code of the answer, and the id of the broker to ask next time."""
        config = self._live.current
        code = result.status.pull_code(header.queue_offset)
        suggested_id = self._suggested(group, is_slow=result.suggest_slave)
        if config.is_slave:
            if not result.suggest_slave and self._has_master():
                suggested_id = MASTER_ID
                if result.status is not _FOUND:
                    code = ResponseCode.PULL_RETRY_IMMEDIATELY
            elif code == ResponseCode.PULL_OFFSET_MOVED and not config.store.offset_check_in_slave:
                suggested_id = group.broker_id
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return code, suggested_id

    def _suggested(self, group: SubscriptionGroupConfig, *, is_slow: bool) -> int:
        if not self._live.current.slave_read_enable:
            return MASTER_ID
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
        low = reader.min_offset(header.topic, header.queue_id)
        high = reader.max_offset(header.topic, header.queue_id)
        suggested_id = self._suggested(group, is_slow=False)
        ext = position_ext(suggested_id, offset, low, high, topic, group)
        return response_to(request, ResponseCode.PULL_OFFSET_MOVED, OFFSET_RESET, ext=ext)

    def _commit(self, header: PullMessageRequestHeader) -> None:
        if header.commit_offset >= 0:
            self._offsets.commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )

    def _count(self, header: PullMessageRequestHeader, result: GetResult, began_at: float) -> None:
        store_stats, topic, group = self._store_stats, header.topic, header.consumer_group
        if result.last_log_offset >= 0:
            meter = self._stats.queue_gets[header.queue_id, topic, group]
            meter.behind_size = max(0, self._store.log.max_offset - result.last_log_offset)
        if result.status is not _FOUND:
            store_stats.missed_count += 1
            return
        store_stats.found_count += 1
        store_stats.transferred_count += result.message_count
        meter.count += round((self._clock.monotonic() - began_at) * 1000)
        meter.times += 1
        self._stats.got(
            topic,
            group,
            result.message_count,
            result.size,
            is_system=self._topics.is_system(topic),
        )

    # --- waiting ----------------------------------------------------------------------------------

    def _park(
        self,
        connection: Connection,
        request: Command,
        header: PullMessageRequestHeader,
        wanted: PullFilter,
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
            HeldPull(connection, request, header),
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
        if self.on_held is not None:
            self.on_held(request)
        self._arm()

    def arrived(self, arrival: Arrival) -> None:
        """A message can be read from now on; hook for the store."""
        if (arrival.topic, arrival.queue_id) in self.awaited:
            if not self._arrivals:
                wake = self._wake_in_next_turn if self._answers_later else self._wake
                asyncio.get_running_loop().call_soon(wake)
            self._arrivals.append(arrival)

    def grown(self, queues: Iterable[EntryQueue]) -> None:
        """Messages of a master can be read from now on; hook for the store of a slave."""
        now_ms = self._now_ms()
        for queue in queues:
            woken = self.held.arrived(queue.topic, queue.queue_id, queue.max_offset, now_ms)
            self._woken.extend(woken)
        if self._woken:
            self._run_woken()

    def _wake_in_next_turn(self) -> None:
        """With SYNC_FLUSH, this is the turn in which the answers of producers leave."""
        asyncio.get_running_loop().call_soon(self._wake)

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
            self._woken.extend(woken)
        self._run_woken()

    def _run_woken(self) -> None:
        """Run again those that were woken: some now, the others in turns of their own."""
        self._at_work(self._clock.monotonic())
        for _ in range(min(len(self._woken), WAKES_PER_TURN)):
            self._run_again(self._woken.popleft())
        if self._woken:
            asyncio.get_running_loop().call_soon(self._run_woken)
        self._arm()

    def _run_again(self, pull: HeldPull) -> None:
        connection, request, header = pull
        response: Answer | bytes = None
        if not connection.is_closing:
            if connection.write_paused:
                connection.call_when_writable(partial(self._run_again, pull))
                return
            try:
                response = self._run(connection, request, header, is_first=False)
            except Exception as error:  # noqa: BLE001 - becomes code 1; the others are woken as well
                response = error_response(request, error)
        assert response is not LATER, "a pull waits once"
        connection.answer(request, response)

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
        self._woken.extend(self.held.take_due(max(self._now_ms(), self._timer_due_ms)))
        self._run_woken()

    def forget(self, connection: Connection) -> None:
        """A connection has ended."""
        for _, request, _ in self.held.drop(connection):
            connection.answer(request, None)

    def wake_all(self) -> None:
        """Have all that wait look again: a slave has found its master."""
        self._woken.extend(self.held.wake_all())
        if self._woken:
            self._run_woken()

    def stop(self) -> None:
        """Answer all that wait, and let nobody wait any more."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._woken.extend(self.held.wake_all())
        while self._woken:
            self._run_again(self._woken.popleft())

    def _now_ms(self) -> int:
        """Steady time: held pulls do not notice a step of the wall clock."""
        return round(self._clock.monotonic() * 1000)
