"""Reads a range of a queue, from one offset to another, by repeated pulls without a gap.

For bulk readers of stored messages without a group: Arrow and Spark. Pulls commit nothing and do
not wait for new messages. With ``bulk=true`` a Skylark broker responds with megabytes; an Apache
broker ignores it and sends 32 messages at a time, or 8 that it must read from disk. The reader logs
a warning once if responses are that small.

===========================  ======================================================================
response                     action
===========================  ======================================================================
found, nothing matched       continue at the next offset; the next pull starts before this response
                             is used
nothing new, or nothing      a replica lags: retry after 100 ms to 2 s, until the patience ends, at
matched and the same offset  the address that ``find`` returns then
offset moved forward         messages are gone: call ``on_missing``, or raise :class:`MissingError`
offset moved back            the topic was created again: the same, and the range ends
busy, not available,         retry likewise
connection errors, and no    the same, until ``outage_s`` is over
name server for ``find``
no progress, three times     an error
===========================  ======================================================================
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from typing import Any, Final, TypeAlias

import msgspec

from skylark.client.core.broker_calls import BrokerCalls, Pulled, PullStatus
from skylark.client.errors import Missing, MissingError
from skylark.core.backoff import Backoff, Outage
from skylark.core.clock import Clock, yield_once
from skylark.core.errors import (
    BrokerError,
    ClientError,
    NoNameServerError,
    RemoteProtocolError,
    SubscriptionGroupNotExistError,
    TransportError,
)
from skylark.core.names import TOOLS_GROUP
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import PullSysFlag, ResponseCode
from skylark.wire.headers.pull import PullMessageRequestHeader

logger = logging.getLogger(__name__)

RETRY: Final = Backoff(first_s=0.1, most_s=2.0)
STUCK_MAX: Final = 3
#: Responses are too small if so many of them have at most so few messages on average.
SLOW_PULLS: Final = 50
SLOW_COUNT: Final = 8

_RETRIED: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
    }
)


class RangeTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The options of reading a range."""

    expression: str = "*"  #: tags, ``A || B``, or a condition in SQL
    expression_type: str = "TAG"
    group: str = TOOLS_GROUP  #: group in requests; must exist if brokers do not create groups
    count_max: int = 65_536  #: messages of one pull
    size_max: int = 1024 * 1024  #: bytes of one pull
    timeout_s: float = 30.0  #: of one pull
    patience_s: float = 30.0  #: how long one pull is retried
    outage_s: float | None = None  #: the same while no server answers; None: ``patience_s``
    on_outage: Callable[[Exception], object] | None = None  #: called before each such retry


#: Returns the address to pull from; the argument counts the attempts of one pull, from 0.
Find: TypeAlias = Callable[[int], Awaitable[str]]
OnMissing: TypeAlias = Callable[[Missing], None]


def fixed_address(address: str) -> Find:
    """A function for a broker with a fixed address."""

    async def find(attempt: int) -> str:
        del attempt
        return address

    return find


async def pull_range(
    calls: BrokerCalls,
    find: Find,
    queue: MessageQueue,
    start: int,
    end: int,
    clock: Clock,
    terms: RangeTerms = RangeTerms(),  # noqa: B008 - never changes
    on_missing: OnMissing | None = None,
) -> AsyncGenerator[Pulled, None]:
    """The responses with messages of [start, end), in order; they may have more messages.

    Raises MissingError without ``on_missing``, BrokerError, TransportError, ClientError.
    """
    puller = _Puller(calls, find, queue, end, clock, terms)
    pending: asyncio.Task[Pulled] | None = None
    offset, stuck = start, 0
    try:
        while offset < end:
            pulled = await (pending or puller.pull(offset))
            pending = None
            if pulled.status is PullStatus.OFFSET_ILLEGAL:
                _report_missing(queue, offset, end, pulled.next_offset, on_missing)
                if pulled.next_offset <= offset:
                    return
            stuck = stuck + 1 if pulled.next_offset <= offset else 0
            if stuck >= STUCK_MAX or pulled.next_offset < offset:
                raise ClientError(
                    f"pulls of {queue} do not get past offset {offset}: the broker answers"
                    f" {pulled.status.value} and goes on at {pulled.next_offset}"
                )
            puller.count(pulled, pulled.next_offset - offset)
            offset = pulled.next_offset
            if offset < end:
                pending = asyncio.get_running_loop().create_task(puller.pull(offset))
                await yield_once()  # the request is sent before this response is decoded
            if pulled.body:
                yield pulled
    finally:
        if pending is not None:
            await end_tasks([pending])


def _is_behind(pulled: Pulled, offset: int) -> bool:
    """Whether a broker does not have the offset yet.

    A slave that lacks more than one message responds that nothing matched.
    """
    if pulled.status is PullStatus.NO_MATCHED_MSG:
        return pulled.next_offset == offset
    return pulled.status is PullStatus.NO_NEW_MSG


async def end_tasks(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for them; ignores their errors."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _report_missing(
    queue: MessageQueue, offset: int, end: int, next_offset: int, on_missing: OnMissing | None
) -> None:
    until = min(next_offset, end) if next_offset > offset else end
    missing = Missing(queue=queue, wanted=offset, available=next_offset, count=until - offset)
    if on_missing is None:
        raise MissingError(missing)
    on_missing(missing)


class _Puller(msgspec.Struct, eq=False):
    """Pulls of one range, each retried until the patience ends."""

    calls: BrokerCalls
    find: Find
    queue: MessageQueue
    end: int
    clock: Clock
    terms: RangeTerms
    pull_count: int = 0
    message_count: int = 0

    async def pull(self, offset: int) -> Pulled:
        """One response about the range; retries transient errors."""
        terms = self.terms
        refusals = Outage(RETRY, self.clock, terms.patience_s)
        no_answers = Outage(RETRY, self.clock, terms.outage_s or terms.patience_s)
        while True:
            problem: Exception
            retries = refusals
            try:
                address = await self.find(refusals.failures + no_answers.failures)
                pulled = await self.calls.pull(
                    address, self._header(offset), self.queue.broker_name, self.terms.timeout_s
                )
                if not _is_behind(pulled, offset):
                    return pulled
                problem = ClientError(
                    f"{address} has no message at offset {offset} of {self.queue},"
                    f" its last is {pulled.max_offset - 1}"
                )
            except SubscriptionGroupNotExistError as error:
                error.hint = f"create the group {self.terms.group}, or name another one"
                raise
            except BrokerError as error:
                if error.code not in _RETRIED:
                    raise
                problem = error
            except (TransportError, RemoteProtocolError, NoNameServerError) as error:
                problem, retries = error, no_answers
            pause_s = retries.next_pause_s()
            if pause_s is None:
                raise problem
            logger.info("retrying the pull at offset %d of %s: %s", offset, self.queue, problem)
            if retries is no_answers and terms.on_outage is not None:
                terms.on_outage(problem)
            await self.clock.sleep(pause_s)

    def _header(self, offset: int) -> PullMessageRequestHeader:
        terms = self.terms
        return PullMessageRequestHeader(
            consumer_group=terms.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=offset,
            max_msg_nums=min(terms.count_max, self.end - offset),
            max_msg_bytes=terms.size_max,
            sys_flag=int(PullSysFlag.SUBSCRIPTION),
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription=terms.expression,
            sub_version=self.clock.now_ms(),
            expression_type=terms.expression_type,
            bulk=True,
        )

    def count(self, pulled: Pulled, advanced: int) -> None:
        """Count messages per response, and warn once if the broker sends few."""
        if not pulled.body:
            return
        self.pull_count += 1
        self.message_count += advanced
        if self.pull_count == SLOW_PULLS and self.message_count <= SLOW_PULLS * SLOW_COUNT:
            logger.warning(
                "%s sends %d messages per pull; its settings maxTransferCountOnMessageInDisk"
                ", maxTransferBytesOnMessageInDisk, maxTransferCountOnMessageInMemory and"
                " maxTransferBytesOnMessageInMemory allow more",
                self.queue.broker_name,
                self.message_count // self.pull_count,
            )
