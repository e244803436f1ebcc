"""Half messages of a sink: sending them, writing down where they are, and ending them.

**Sending.** Each row is a message of its own with ``TRAN_MSG``, the resolver's group, its identity
and a time of immunity, within which brokers ask nobody about it. A send that gets no answer may
have stored its half; it is repeated under the next number, and the number before is void
(:mod:`skylark.spark.decisions`). Answers that say the row was not stored keep the number.

**Ending.** END_TRANSACTION is sent as a request, so failures are seen, and repeated until it is
answered. An answer of 604 hands the half over: its immunity is over, and now only the answer to the
broker's question counts, which the resolver gives. With sharding keys the ends of one queue follow
each other one by one, in the order of the rows; otherwise many are under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from skylark.client.calls import checked, make_request
from skylark.core.errors import BrokerError, ClientError, SkylarkError
from skylark.spark.decisions import (
    RESOLVER_GROUP,
    Manifest,
    sums,
    unique_id,
    unique_prefix,
)
from skylark.spark.sink_client import SinkClient
from skylark.spark.txn_log import may_repeat
from skylark.wire.bodies.common import MessageQueue
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.headers.pull import QueryMessageRequestHeader
from skylark.wire.headers.txn import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    EndTransactionRequestHeader,
)

log = logging.getLogger(__name__)

#: Ends under way at one broker.
IN_FLIGHT_MAX: Final = 256
END_TIMEOUT_S: Final = 5.0
_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MOST_S: Final = 2.0
#: Answers with code 1 that will not change, in Java's words and in ours.
_REFUSALS: Final = (
    "Find prepared transaction message failed",
    "The producer group wrong",
    "The transaction state table offset wrong",
    "The commit log offset wrong",
    "half already",
)
_FOREVER_MS: Final = (1 << 53) - 1


class Place(NamedTuple):
    """Where a half is, and where its row will be."""

    queue: MessageQueue
    log_offset: int
    queue_offset: int
    unique_id: str


class Ended(msgspec.Struct):
    """What became of many ends."""

    count: int = 0  #: answered with success
    handed_over: int = 0  #: left to the resolver
    skipped: int = 0  #: found to be committed before (``txnVerify``)


def places_of(manifest: Manifest) -> list[Place]:
    """The halves that a manifest names, in the order of the rows."""
    prefix = unique_prefix(manifest.sink, manifest.batch, manifest.partition, manifest.attempt)
    queues = [
        MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)
        for topic, broker, queue_id in manifest.queues
    ]
    return [
        Place(queues[target], log_offset, queue_offset, unique_id(prefix, seq))
        for target, log_offset, queue_offset, seq in zip(
            manifest.targets,
            sums(manifest.log_offsets),
            sums(manifest.queue_offsets),
            sums(manifest.seqs),
            strict=True,
        )
    ]


class Ends:
    """Ends halves, many at a time."""

    def __init__(self, client: SinkClient, patience_s: float, *, verify: bool = False) -> None:
        """``verify``: ask before committing whether that was done before (best effort)."""
        self._client = client
        self._patience_s = patience_s
        self._verify = verify
        self._permits: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(IN_FLIGHT_MAX)
        )

    async def commit(self, places: Sequence[Place], *, ordered: bool) -> Ended:
        """Commit halves; raises the first failure, when nothing is under way any more."""
        ended = Ended()
        if ordered:
            lanes: dict[MessageQueue, list[Place]] = defaultdict(list)
            for place in places:
                lanes[place.queue].append(place)
            await _all(self._commit_lane(lane, ended) for lane in lanes.values())
        else:
            for first in range(0, len(places), 4096):
                part = places[first : first + 4096]
                await _all(self._commit_lane((place,), ended) for place in part)
        return ended

    async def _commit_lane(self, places: Sequence[Place], ended: Ended) -> None:
        for place in places:
            async with self._permits[place.queue.broker_name]:
                if self._verify and await self._is_there(place):
                    ended.skipped += 1
                elif await self._end(place, TRANSACTION_COMMIT):
                    ended.count += 1
                else:
                    ended.handed_over += 1

    async def roll_back(self, places: Iterable[Place]) -> None:
        """Roll halves back that nobody will commit; a failure is left to the resolver."""
        failures: list[SkylarkError] = []

        async def one(place: Place) -> None:
            async with self._permits[place.queue.broker_name]:
                if failures:
                    return
                try:
                    await self._end(place, TRANSACTION_ROLLBACK)
                except SkylarkError as error:
                    failures.append(error)

        await _all(one(place) for place in places)
        if failures:
            log.info("rolling back is left to the resolver: %s", failures[0])

    async def _end(self, place: Place, what: int) -> bool:
        """Whether it counts; False if only the resolver can decide now."""
        client = self._client
        header = EndTransactionRequestHeader(
            topic=place.queue.topic,
            producer_group=client.namespace.wrap(RESOLVER_GROUP),
            tran_state_table_offset=place.queue_offset,
            commit_log_offset=place.log_offset,
            commit_or_rollback=what,
            msg_id=place.unique_id,
            transaction_id=place.unique_id,
        )
        deadline = client.clock.monotonic() + self._patience_s
        pause_s = _PAUSE_FIRST_S
        while True:
            try:
                address = await client.master(place.queue)
                request = make_request(
                    RequestCode.END_TRANSACTION, header, broker_name=place.queue.broker_name
                )
                answer = await client.link.call(address, request, END_TIMEOUT_S)
                answer = checked(answer, address, ResponseCode.ILLEGAL_OPERATION)
            except SkylarkError as error:
                late = client.clock.monotonic() + pause_s > deadline
                if late or _is_refusal(error):
                    raise
                log.debug("the end of %s is repeated: %s", place.unique_id, error)
            else:
                return answer.code == ResponseCode.SUCCESS
            await client.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)

    async def _is_there(self, place: Place) -> bool:
        """Whether the final message is found by its id; an index may lag, so this is no proof."""
        address = await self._client.master(place.queue)
        header = QueryMessageRequestHeader(
            topic=place.queue.topic,
            key=place.unique_id,
            max_num=1,
            begin_timestamp=0,
            end_timestamp=_FOREVER_MS,
            unique_key_query=True,
        )
        found = await self._client.link.calls.query_messages(address, header)
        return any(record.topic == place.queue.topic for record in found.records)


def _is_refusal(error: SkylarkError) -> bool:
    """Whether a broker has said that there is no such half, or that it ended otherwise."""
    if isinstance(error, BrokerError):
        return error.remark.startswith(_REFUSALS) or not may_repeat(error)
    return not may_repeat(error) and not isinstance(error, ClientError)


async def _all(work: Iterable[object]) -> None:
    """Wait for all; the first error is raised when the others have ended."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)  # type: ignore[call-overload]
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
