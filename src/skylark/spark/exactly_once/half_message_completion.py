"""Completion of half messages: commits or rolls back those of a sink, many at a time.

END_TRANSACTION is sent as a request, not one-way, so that failures are seen, and repeated until it
is answered. The reply 604 hands the half message over to the resolver: its immunity is over, and
now only the answer to the broker's check-back counts. With sharding keys the half messages of one
queue are completed one after the other, in the order of the rows; otherwise many at once.

A Skylark broker takes a few hundred of them in one request, END_HALVES, and completes them in order
up to the first that fails; that one is then completed by a separate request, with its own retries
and error. A request without a reply is repeated as a whole: any number of its half messages may be
completed already, and each is completed once. A broker that does not know the request (3) gets one
request for each half message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from skylark.client.core.broker_calls import checked, make_request
from skylark.core.backoff import Backoff, Outage
from skylark.core.errors import BrokerError, ClientError, SkylarkError
from skylark.spark.exactly_once.txn_log import may_repeat
from skylark.spark.exactly_once.txn_log_records import (
    RESOLVER_GROUP,
    Manifest,
    sums,
    unique_id,
    unique_prefix,
)
from skylark.spark.outages import OutageWait, is_outage
from skylark.spark.sink.sink_client import SinkClient
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.end_halves_body import HalfPlace, decode_codes, encode_places
from skylark.wire.headers.pull import QueryMessageRequestHeader
from skylark.wire.headers.txn import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    EndHalvesRequestHeader,
    EndTransactionRequestHeader,
)

logger = logging.getLogger(__name__)

#: Single requests in flight to one broker.
IN_FLIGHT_MAX: Final = 256
#: Half messages in one END_HALVES, and such requests in flight to one broker.
PORTION_COUNT: Final = 512
_PORTIONS_IN_FLIGHT: Final = 4
END_TIMEOUT_S: Final = 5.0
_REPEAT: Final = Backoff(first_s=0.05, most_s=2.0)
#: Remarks of replies with code 1 for which a retry is useless, of Java's broker and of ours.
_REFUSALS: Final = (
    "Find prepared transaction message failed",
    "The producer group wrong",
    "The transaction state table offset wrong",
    "The commit log offset wrong",
    "half already",
)
_FOREVER_MS: Final = (1 << 53) - 1


class HalfLocation(NamedTuple):
    """Position of a half message, and the queue of its final message."""

    queue: MessageQueue
    log_offset: int
    queue_offset: int
    unique_id: str


class CompletionCounts(msgspec.Struct):
    """Figures of completed half messages."""

    count: int = 0  #: answered with success
    handed_over: int = 0  #: left to the resolver
    skipped: int = 0  #: found to be committed before (``txnVerify``)


def half_locations(manifest: Manifest) -> list[HalfLocation]:
    """The half messages of a manifest, in the order of the rows."""
    prefix = unique_prefix(manifest.sink, manifest.batch, manifest.partition, manifest.attempt)
    queues = [
        MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)
        for topic, broker, queue_id in manifest.queues
    ]
    return [
        HalfLocation(queues[target], log_offset, queue_offset, unique_id(prefix, seq))
        for target, log_offset, queue_offset, seq in zip(
            manifest.targets,
            sums(manifest.log_offsets),
            sums(manifest.queue_offsets),
            sums(manifest.seqs),
            strict=True,
        )
    ]


class HalfMessageCompleter:
    """Commits and rolls back half messages, many at a time."""

    def __init__(
        self, client: SinkClient, patience_s: float, outage_s: float, *, verify: bool = False
    ) -> None:
        """How long to retry a request that is refused, and one that gets no answer.

        ``verify``: query before a commit whether the final message exists (best effort).
        """
        self._client = client
        self._patience_s = patience_s
        self._outage_s = outage_s
        self._verify = verify
        self._without: set[str] = set()  # brokers that do not know END_HALVES
        self._permits: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(IN_FLIGHT_MAX)
        )
        self._portion_permits: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_PORTIONS_IN_FLIGHT)
        )

    async def commit(self, places: Sequence[HalfLocation], *, ordered: bool) -> CompletionCounts:
        """Commit half messages; raises the first failure after all requests have ended."""
        ended = CompletionCounts()
        lanes: Iterable[Sequence[HalfLocation]]
        lanes = _grouped(places, lambda place: place.queue) if ordered else _portions(places)
        await gather_all(self._commit_lane(lane, ended, ordered=ordered) for lane in lanes)
        return ended

    async def _commit_lane(
        self, places: Sequence[HalfLocation], ended: CompletionCounts, *, ordered: bool
    ) -> None:
        for portion in _portions(places):
            async with self._portion_permits[portion[0].queue.broker_name]:
                await self._portion(portion, TRANSACTION_COMMIT, ended, ordered=ordered)

    async def roll_back(self, places: Iterable[HalfLocation]) -> None:
        """Roll back half messages of losing attempts; failures are left to the resolver."""
        failures: list[SkylarkError] = []

        async def roll_back(portion: Sequence[HalfLocation]) -> None:
            async with self._portion_permits[portion[0].queue.broker_name]:
                if failures:
                    return
                try:
                    await self._portion(
                        portion, TRANSACTION_ROLLBACK, CompletionCounts(), ordered=False
                    )
                except SkylarkError as error:
                    failures.append(error)

        await gather_all(roll_back(portion) for portion in _portions(list(places)))
        if failures:
            logger.info("leaving the rollback to the resolver: %s", failures[0])

    # ---- portions: half messages of one broker and topic, in one request -------------------------

    async def _portion(
        self, places: Sequence[HalfLocation], what: int, ended: CompletionCounts, *, ordered: bool
    ) -> None:
        broker = places[0].queue.broker_name
        while places and not self._verify and broker not in self._without:
            codes = await self._end_together(places, what)
            if codes is None:
                self._without.add(broker)
                break
            for place, code in zip(places, codes, strict=False):
                await self._tally(place, what, code, ended)
            places = places[len(codes) :]
        if ordered:
            for place in places:
                await self._end_one(place, what, ended)
        else:
            await gather_all(self._end_one(place, what, ended) for place in places)

    async def _tally(
        self, place: HalfLocation, what: int, code: int, ended: CompletionCounts
    ) -> None:
        if code == ResponseCode.SUCCESS:
            ended.count += 1
        elif code == ResponseCode.ILLEGAL_OPERATION:
            ended.handed_over += 1
        else:
            await self._end_one(place, what, ended)

    async def _end_together(
        self, places: Sequence[HalfLocation], what: int
    ) -> Sequence[int] | None:
        """The codes of the first ones, one at least; None if the broker lacks END_HALVES."""
        client, queue = self._client, places[0].queue
        header = EndHalvesRequestHeader(
            topic=queue.topic,
            producer_group=client.namespace.wrap(RESOLVER_GROUP),
            commit_or_rollback=what,
        )
        body = encode_places(
            HalfPlace(place.log_offset, place.queue_offset, place.unique_id) for place in places
        )

        def make() -> Command:
            request = make_request(RequestCode.END_HALVES, header, broker_name=queue.broker_name)
            request.body = body
            return request

        try:
            answer = await self._call(queue, make)
        except BrokerError as error:
            if is_unknown_request(error):
                return None
            raise
        return decode_codes(answer.body, len(places))

    # ---- one by one ------------------------------------------------------------------------------

    async def _end_one(self, place: HalfLocation, what: int, ended: CompletionCounts) -> None:
        async with self._permits[place.queue.broker_name]:
            if self._verify and what == TRANSACTION_COMMIT and await self._is_there(place):
                ended.skipped += 1
            elif await self._end(place, what):
                ended.count += 1
            else:
                ended.handed_over += 1

    async def _end(self, place: HalfLocation, what: int) -> bool:
        """Whether it is completed; False if it was handed over to the resolver."""
        header = EndTransactionRequestHeader(
            topic=place.queue.topic,
            producer_group=self._client.namespace.wrap(RESOLVER_GROUP),
            tran_state_table_offset=place.queue_offset,
            commit_log_offset=place.log_offset,
            commit_or_rollback=what,
            msg_id=place.unique_id,
            transaction_id=place.unique_id,
        )

        def make() -> Command:
            name = place.queue.broker_name
            return make_request(RequestCode.END_TRANSACTION, header, broker_name=name)

        answer = await self._call(place.queue, make)
        return answer.code == ResponseCode.SUCCESS

    async def _call(self, queue: MessageQueue, make: Callable[[], Command]) -> Command:
        """Send a request to the master of a queue until there is a reply, success or 604."""
        client = self._client
        refusals = Outage(_REPEAT, client.clock, self._patience_s)
        with OutageWait(client.clock, self._outage_s) as wait:
            while True:
                try:
                    address = await client.master(queue)
                    answer = await client.link.call(address, make(), END_TIMEOUT_S)
                    return checked(answer, address, ResponseCode.ILLEGAL_OPERATION)
                except SkylarkError as error:
                    problem = error
                if is_outage(problem):
                    await wait.pause(problem)
                    continue
                wait.over()
                if _is_refusal(problem) or not await refusals.pause():
                    raise problem
                logger.debug("retrying END_TRANSACTION at %s: %s", queue.broker_name, problem)

    async def _is_there(self, place: HalfLocation) -> bool:
        """Whether the index finds the final message by its id; the index may lag."""
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
        return any(record.topic == place.queue.topic for record in found)


def _is_refusal(error: SkylarkError) -> bool:
    """Whether a retry is useless: no such half message, or it was completed otherwise."""
    if isinstance(error, BrokerError):
        return error.remark.startswith(_REFUSALS) or not may_repeat(error)
    return not may_repeat(error) and not isinstance(error, ClientError)


def is_unknown_request(error: BrokerError) -> bool:
    """Whether a broker does not know a request code of Skylark."""
    return error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def _grouped(
    places: Iterable[HalfLocation], key: Callable[[HalfLocation], Hashable]
) -> list[list[HalfLocation]]:
    groups: dict[Hashable, list[HalfLocation]] = defaultdict(list)
    for place in places:
        groups[key(place)].append(place)
    return list(groups.values())


def _portions(places: Sequence[HalfLocation]) -> Iterator[Sequence[HalfLocation]]:
    """Group half messages into requests: one broker and topic each, in order."""
    for group in _grouped(places, lambda place: (place.queue.broker_name, place.queue.topic)):
        for first in range(0, len(group), PORTION_COUNT):
            yield group[first : first + PORTION_COUNT]


async def gather_all(work: Iterable[object]) -> None:
    """Wait for all, then raise the first error."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)  # type: ignore[call-overload]
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
