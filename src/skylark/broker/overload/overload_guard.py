"""Overload guard: refuses requests that waited too long or take too much memory.

**Fast failure.** A producer whose request timed out sends its message again elsewhere; storing the
first one as well makes a duplicate and more load. So the broker refuses a request that waited for
too long (code 2). Java's broker has the time of arrival of each request in the queues of its thread
pools. Here requests wait in the kernel while the event loop works, without a time of arrival, so
:class:`LoopWatch` measures the turns of the loop::

    turn n                        turn n+1
    |-- work ------------------|  |-- work ...
    began                  ended  bytes read here may have come at any time since turn n began

A *watched* turn records its beginning and, by ``call_soon``, its end. Bytes that the poll right
after a long turn finds count as arrived when that turn began, all others as arrived now. A second
``call_soon`` separates the two: it runs after all that this poll has found, and before what the
next one finds. (The time since the end of the turn does not separate them: other callbacks may run
before the bytes are read, and take long.) It errs on the side of refusing: a request that arrived
at the end of a long turn counts as having waited for all of it.

Each ``call_soon`` costs a further turn of the loop, as much as the request itself where requests
come one by one. So connections, which know when they have handled what they read, report both ends
of their work (:meth:`LoopWatch.read`, :meth:`LoopWatch.served`), and the turn is watched only if
they, or several of them one right after the other, have worked for a millisecond.

**A busy machine is not a busy broker.** What other processes on the machine cause is no reason to
refuse. So requests wait in *own time*, which stands still while the thread of the loop waits for a
processor, or for a thread that does (:mod:`skylark.broker.overload.processor_wait`). That time is
read after a turn of more than 50 ms, before a request is refused, and, so that the difference of
two readings belongs to that turn, at the beginning of a turn if the last reading is 20 ms old.

Everything else that starts work in a turn reports its beginning only: timers and sleeping tasks
(:class:`WatchedClock`), results of threads, connections that start a task. What they start runs in
the turn after theirs. So that turn is watched as well, and so on until a turn was short and started
nothing.

**Page cache busy.** If one append took longer than ``osPageCacheBusyTimeOutMills``, the disk is the
cause, and the refusal of sends that waited behind it says so.

**Refusals** begin with Java's texts, which tools and people know:

=========================  ========================================================================
``[REJECTREQUEST]``        a send to a slave, or without a free buffer in the pool; a pull from a
                           slave that serves none
``[OVERLOAD]``             the broker holds more bytes for its clients than it may
``[PCBUSY_CLEAN_QUEUE]``   a send that waited behind an append that took too long
``[TIMEOUT_CLEAN_QUEUE]``  any request that waited longer than the limit of its family
=========================  ========================================================================

Counterpart of Java's ``BrokerFastFailure``, the ``rejectRequest`` of processors, and
``protectBroker``.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeVarTuple

import msgspec

from skylark.broker.config import BrokerConfig
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.overload.processor_wait import ProcessorWait
from skylark.broker.stats.broker_stats import BrokerStats, QueueMeter
from skylark.broker.table_saver import InThread
from skylark.core.clock import BaseClock, Clock, TimerHandle, TimeSource
from skylark.core.errors import SystemBusyError
from skylark.net.connection import Connection
from skylark.net.dispatch import OVERLOAD_REMARK
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command

logger = logging.getLogger(__name__)

Ts = TypeVarTuple("Ts")

REJECT_REMARK: Final = "[REJECTREQUEST]system busy, start flow control for a while"
LATE_REMARK: Final = (
    "[{reason}]broker busy, start flow control for a while, period in queue: {waited_ms}ms,"
    " size of queue: 0"
)
#: A shorter turn does not delay requests.
LONG_TURN_S: Final = 0.01
#: Work of connections that took less than this together leaves its turn unwatched; work that begins
#: within a tenth of it after other work belongs together.
SHORT_WORK_S: Final = 0.001
#: After a longer turn, the time that its thread waited for a processor is subtracted.
EXCUSED_TURN_S: Final = 0.05
#: How old the last reading of that time may be at the beginning of a turn: what came between the
#: two is subtracted as well.
EXCUSE_INTERVAL_S: Final = 0.02
#: A reading is not repeated within this time: it costs about 20 us.
READ_AGAIN_S: Final = 0.005
#: A longer append is reported as a call that blocked.
LONG_APPEND_S: Final = 0.05
#: How often the held bytes are added up, while requests come.
MEASURE_S: Final = 0.1
#: How often groups are checked that read too far behind.
SLOW_GROUPS_INTERVAL_S: Final = 180.0
#: Refusals are logged at most this often.
LOG_INTERVAL_S: Final = 15.0

CallSoon = Callable[[Callable[[], None]], object]


class LoopWatch:
    """Measures for how long the event loop keeps requests waiting.

    All times that it gives are in *own time*: the monotonic clock, less the time for which the
    loop could not go on because a thread waited for a processor (``excused_s``).
    """

    def __init__(
        self,
        clock: TimeSource,
        *,
        processor_wait: ProcessorWait | None = None,
        call_soon: CallSoon | None = None,
        on_turn: Callable[[float], None] | None = None,
    ) -> None:
        self._monotonic = clock.monotonic
        self._processor_wait = processor_wait
        self._call_soon = call_soon
        #: Called with the milliseconds that each turn took, on the clock: the lag of the loop.
        self.on_turn = on_turn
        #: For how long the loop could not go on for want of a processor, when that was read last.
        self.excused_s = 0.0
        self._excused_at = math.inf if processor_wait is None else -math.inf
        #: Whether this turn of the loop is watched, and if so, what counts as the arrival of all
        #: bytes read in it.
        self.in_turn = False
        self.turn_arrived_at = -math.inf
        self._began_at = -math.inf  # in own time
        self._began_now = -math.inf
        self._after_long_turn = False
        self._does_work = False  # known of this turn
        self._goes_on = False  # in the next turn
        #: The work of connections in a turn that is not watched.
        self._work_began_at = -math.inf
        self._work_ended_at = -math.inf

    def arrived_at(self, now: float) -> float:
        """When bytes that are read now count as arrived; also records that this turn does work.

        Everything that may take long calls this when it begins, also if it reads no bytes.
        """
        self._does_work = self._goes_on = True
        if not self.in_turn:
            self._begin(now)
        return self.turn_arrived_at

    def read(self, now: float) -> float:
        """:meth:`arrived_at` for work that reports its end, too: :meth:`served` follows."""
        if self.in_turn:
            self._does_work = True
            return self.turn_arrived_at
        if now - self._excused_at >= EXCUSE_INTERVAL_S:
            self.excuse(now)
            self._work_began_at = now
        elif now - self._work_ended_at > SHORT_WORK_S / 10:
            self._work_began_at = now
        return now - self.excused_s

    def served(self, *, goes_on: bool) -> None:
        """The work since :meth:`read` is done; ``goes_on``: the next turn goes on with it."""
        if self.in_turn:
            self._goes_on |= goes_on
            return
        now = self._work_ended_at = self._monotonic()
        if goes_on or now - self._work_began_at >= SHORT_WORK_S:
            self._does_work, self._goes_on = True, goes_on
            self._begin(self._work_began_at)
        elif self.on_turn is not None:
            self.on_turn((now - self._work_began_at) * 1000)

    def waited_ms(self) -> int:
        """For how long bytes that are read now have waited."""
        now = self._monotonic()
        return round((now - self.excused_s - self.arrived_at(now)) * 1000)

    def excuse(self, now: float) -> None:
        """Read for how long the loop has waited for a processor, unless that was just done."""
        if now - self._excused_at >= READ_AGAIN_S:
            assert self._processor_wait is not None, "otherwise it was read at infinity"
            self.excused_s = self._processor_wait.read(now)
            self._excused_at = now

    def blocked(self, seconds: float) -> None:
        """Record a call that blocked the loop for so long."""
        if self._processor_wait is not None:
            self._processor_wait.blocked(seconds)

    def close(self) -> None:
        """Release what the readings use; later turns count in full."""
        if self._processor_wait is not None:
            self._processor_wait.close()
            self._processor_wait, self._excused_at = None, math.inf

    def _begin(self, now: float) -> None:
        self.in_turn = True
        if now - self._excused_at >= EXCUSE_INTERVAL_S:
            self.excuse(now)
        own_now = now - self.excused_s
        self.turn_arrived_at = self._began_at if self._after_long_turn else own_now
        self._began_at = own_now
        self._began_now = now
        if self._call_soon is None:
            self._call_soon = asyncio.get_running_loop().call_soon
        self._call_soon(self._end)

    def _end(self) -> None:
        now = self._monotonic()
        took_s = now - self._began_now
        did_work, self._does_work = self._does_work, False
        goes_on, self._goes_on = self._goes_on, False
        self.in_turn = False
        if took_s >= LONG_TURN_S:
            did_work = goes_on = self._after_long_turn = True
            assert self._call_soon is not None, "a turn has begun"
            self._call_soon(self._polled)
            if took_s > EXCUSED_TURN_S:
                self.excuse(now)
        if did_work and self.on_turn is not None:
            self.on_turn(took_s * 1000)
        if goes_on:
            self._begin(now)  # what this turn has started runs in the next

    def _polled(self) -> None:
        """All bytes that came during the last turn have been read."""
        self._after_long_turn = False


class WatchedClock(BaseClock):
    """The clock of all parts of a broker: reports each timer that fires to the watch as work.

    :meth:`run` does the same for other callbacks from outside.
    """

    def __init__(self, clock: Clock, watch: LoopWatch) -> None:
        self._clock = clock
        self._watch = watch
        # Called for every message: bound directly, without the method below.
        self.now_ms = clock.now_ms  # type: ignore[method-assign]
        self.monotonic = clock.monotonic  # type: ignore[method-assign]

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def steady_ms(self) -> int:
        return self._clock.steady_ms()

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> TimerHandle:
        return self._clock.call_at(when, self.run, callback, *args)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts
    ) -> TimerHandle:
        return self._clock.call_later(delay, self.run, callback, *args)

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        self._watch.arrived_at(self.monotonic())

    def run(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        self._watch.arrived_at(self.monotonic())
        callback(*args)

    def watched(self, in_thread: InThread) -> InThread:
        """Reports the continuation after a thread as work, too."""

        async def run(function: Callable[..., None], /, *args: Any) -> None:
            try:
                await in_thread(function, *args)
            finally:
                self._watch.arrived_at(self.monotonic())

        return run


class Family(enum.Enum):
    """Requests that share a limit; the value is the setting that holds it."""

    SEND = "wait_time_mills_in_send_queue"
    PULL = "wait_time_mills_in_pull_queue"
    LITE_PULL = "wait_time_mills_in_lite_pull_queue"
    HEARTBEAT = "wait_time_mills_in_heartbeat_queue"
    TRANSACTION = "wait_time_mills_in_transaction_queue"
    ACK = "wait_time_mills_in_ack_queue"
    ADMIN = "wait_time_mills_in_admin_broker_queue"


#: The family of a request; None: no limit. All other requests are of the family ADMIN.
FAMILIES: Final[Mapping[int, Family | None]] = {
    RequestCode.SEND_MESSAGE: Family.SEND,
    RequestCode.SEND_MESSAGE_V2: Family.SEND,
    RequestCode.SEND_BATCH_MESSAGE: Family.SEND,
    RequestCode.SEND_HALVES: Family.SEND,
    RequestCode.CONSUMER_SEND_MSG_BACK: Family.SEND,
    RequestCode.RECALL_MESSAGE: Family.SEND,
    RequestCode.PULL_MESSAGE: Family.PULL,
    RequestCode.PEEK_MESSAGE: Family.PULL,
    RequestCode.POP_MESSAGE: Family.PULL,
    RequestCode.NOTIFICATION: Family.PULL,
    RequestCode.POLLING_INFO: Family.PULL,
    RequestCode.LITE_PULL_MESSAGE: Family.LITE_PULL,
    RequestCode.HEART_BEAT: Family.HEARTBEAT,
    RequestCode.END_TRANSACTION: Family.TRANSACTION,
    RequestCode.END_HALVES: Family.TRANSACTION,
    RequestCode.ACK_MESSAGE: Family.ACK,
    RequestCode.BATCH_ACK_MESSAGE: Family.ACK,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: Family.ACK,
    RequestCode.SEND_REPLY_MESSAGE: None,
    RequestCode.SEND_REPLY_MESSAGE_V2: None,
    RequestCode.QUERY_MESSAGE: None,
    RequestCode.VIEW_MESSAGE_BY_ID: None,
    RequestCode.UNREGISTER_CLIENT: None,
    RequestCode.CHECK_CLIENT_CONFIG: None,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: None,
    RequestCode.UPDATE_CONSUMER_OFFSET: None,
    RequestCode.QUERY_CONSUMER_OFFSET: None,
    RequestCode.QUERY_ASSIGNMENT: None,
    RequestCode.SET_MESSAGE_REQUEST_MODE: None,
}
_SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_HALVES,
    }
)
_PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
_GUARDED: Final = _SENDS | _PULLS


class Reason(enum.Enum):
    """Why a request was refused; the value is a label of the metric."""

    REJECTED = "rejected"
    OUTSTANDING_BYTES = "outstanding_bytes"
    PAGE_CACHE_BUSY = "page_cache_busy"
    WAITED = "waited"


class OverloadGuard:
    """Interceptor that refuses requests when the broker is overloaded."""

    alike = True

    def __init__(
        self,
        live: LiveSettings,
        watch: LoopWatch,
        clock: TimeSource,
        *,
        held_size: Callable[[], int],
        pool_is_empty: Callable[[], bool],
    ) -> None:
        """``held_size``: the bytes held for all clients, that is bodies of current requests, and
        answers that clients have not read yet.

        ``pool_is_empty``: whether a transient store pool is in use and has no buffer left.
        """
        self.refused_counts = dict.fromkeys(Reason, 0)
        self._watch = watch
        self._monotonic = clock.monotonic
        self._held_size = held_size
        self._pool_is_empty = pool_is_empty
        self._measure_at = -math.inf
        self._holds_too_much = False
        self._stall_ended_at = -math.inf
        self._log_at = -math.inf
        self._read(live.current)
        live.changes.subscribe(self._read)

    # --- the interceptor ---

    def before(self, connection: Connection, request: Command) -> None:
        """Return for a request that may be handled; raises SystemBusyError for others."""
        now = self._monotonic()
        code = request.code
        if code in _GUARDED:
            self._check_guarded(code, now)
        limit_s = self._limits_s.get(code, self._admin_limit_s)
        if now - self._watch.excused_s - connection.arrived_at >= limit_s:
            self._watch.excuse(now)  # this turn, too, may have waited for a processor
            waited_s = now - self._watch.excused_s - connection.arrived_at
            if waited_s >= limit_s:
                self._refuse_late(code, connection.arrived_at, waited_s)

    def after(
        self, _connection: Connection, _request: Command, response: Command | None
    ) -> Command | None:
        return response

    def appended(self, began_at: float, ended_at: float) -> None:
        """Record the time of an append, on the clock of this guard."""
        if ended_at - began_at > LONG_APPEND_S:
            self._appended_slowly(began_at, ended_at)

    # --- inside ---

    def _read(self, config: BrokerConfig) -> None:
        self._held_size_max = config.held_size_max
        self._append_limit_s = config.store.os_page_cache_busy_time_out_mills / 1000
        enabled = config.broker_fast_failure_enable
        limits = {
            family: getattr(config, family.value) / 1000 if enabled else math.inf
            for family in Family
        }
        self._limits_s = {
            int(code): math.inf if family is None else limits[family]
            for code, family in FAMILIES.items()
        }
        self._admin_limit_s = limits[Family.ADMIN]
        self._rejected_codes: frozenset[int] = frozenset()
        if config.is_slave:
            self._rejected_codes = _SENDS if config.slave_read_enable else _SENDS | _PULLS

    def _check_guarded(self, code: int, now: float) -> None:
        if code in self._rejected_codes:
            self._refuse(Reason.REJECTED, REJECT_REMARK, "this broker is a slave: ask its master")
        if code in _SENDS and self._pool_is_empty():
            hint = "no buffer of the transient store pool is free: repeat later or elsewhere"
            self._refuse(Reason.REJECTED, REJECT_REMARK, hint)
        if now >= self._measure_at:  # adding up takes time
            self._measure_at = now + MEASURE_S
            self._holds_too_much = self._held_size() > self._held_size_max
        if self._holds_too_much:
            hint = "the broker holds too much that its clients have yet to read: repeat later"
            self._refuse(Reason.OUTSTANDING_BYTES, OVERLOAD_REMARK, hint)

    def _appended_slowly(self, began_at: float, ended_at: float) -> None:
        watch, took_s = self._watch, ended_at - began_at
        watch.blocked(took_s)
        excused_s = watch.excused_s
        watch.excuse(ended_at)
        took_s -= watch.excused_s - excused_s
        if took_s > self._append_limit_s:
            self._stall_ended_at = ended_at - watch.excused_s
            logger.warning("an append took %d ms", round(took_s * 1000))

    def _refuse_late(self, code: int, arrived_at: float, waited_s: float) -> NoReturn:
        family = FAMILIES.get(code, Family.ADMIN)
        waited_ms = round(waited_s * 1000)
        now = self._monotonic()
        if now - self._log_at >= LOG_INTERVAL_S:
            self._log_at = now
            logger.warning(
                "overload: refused a request (code %d) that waited for %d ms", code, waited_ms
            )
        if family is Family.SEND and arrived_at < self._stall_ended_at:
            reason, name = Reason.PAGE_CACHE_BUSY, "PCBUSY_CLEAN_QUEUE"
            hint = "the disk of the broker is too slow: repeat later or elsewhere"
        else:
            reason, name = Reason.WAITED, "TIMEOUT_CLEAN_QUEUE"
            limit_ms = round(self._limits_s.get(code, self._admin_limit_s) * 1000)
            hint = f"the broker is too busy, the limit is {limit_ms} ms: repeat later or elsewhere"
        self._refuse(reason, LATE_REMARK.format(reason=name, waited_ms=waited_ms), hint)

    def _refuse(self, reason: Reason, remark: str, hint: str) -> NoReturn:
        self.refused_counts[reason] += 1
        raise SystemBusyError(remark, hint=hint)


class SlowGroup(msgspec.Struct, frozen=True):
    """A group that reads too far behind, and the queue with the largest distance."""

    group: str
    topic: str
    queue_id: int
    behind_size: int


def groups_too_far_behind(
    queue_gets: Mapping[tuple[int, str, str], QueueMeter], size_max: int
) -> list[SlowGroup]:
    """Groups to stop (``disableConsumeIfConsumerReadSlowly``), each once.

    Their reads bring old pages into memory and displace those that all other groups read.
    """
    worst: dict[str, SlowGroup] = {}
    for (queue_id, topic, group), meter in queue_gets.items():
        size = meter.behind_size
        if size > size_max and (group not in worst or size > worst[group].behind_size):
            worst[group] = SlowGroup(group, topic, queue_id, size)
    return list(worst.values())


class SlowGroupWatch:
    """Stops groups that read too far behind, if that is switched on."""

    def __init__(
        self, live: LiveSettings, stats: BrokerStats, groups: GroupTable, clock: Clock
    ) -> None:
        self._live = live
        self._stats = stats
        self._groups = groups
        self._clock = clock
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._clock.call_later(SLOW_GROUPS_INTERVAL_S, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self.start()
        config = self._live.current
        if not config.disable_consume_if_consumer_read_slowly:
            return
        size_max = config.consumer_fallbehind_threshold
        for slow in groups_too_far_behind(self._stats.queue_gets, size_max):
            logger.warning(
                "group %s is %d bytes behind on queue %d of %s",
                slow.group,
                slow.behind_size,
                slow.queue_id,
                slow.topic,
            )
            self._groups.stop_consuming(slow.group)
