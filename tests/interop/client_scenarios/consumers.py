"""The consumers of a process with our client, by name; every method here is a command."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

from skylark.client.arrow.arrow_reader import read_arrow
from skylark.client.consumer.classic_pull_consumer import PullConsumer
from skylark.client.consumer.lite_pull.lite_pull_consumer import LitePullConsumer
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.consumer.push.push_settings import PushKeywords
from skylark.client.core.broker_calls import BrokerCalls, PullStatus, open_caller
from skylark.client.core.client_message import DeadLetter, MessageExt, RetryLater
from skylark.core.errors import QueryNotFoundError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumeFromWhere, MessageModel
from tests.interop.client_scenarios.producers import Producers
from tests.interop.client_scenarios.records import Options, client_options, report

FIRST: Final = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
LAST: Final = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET


class _Seen:
    """Which queues handlers work on at a time, and the most at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Counter[int] = Counter()
        self.most_at_once = 0

    def begin(self, queue_id: int) -> None:
        with self._lock:
            self._open[queue_id] += 1
            self.most_at_once = max(self.most_at_once, self._open[queue_id])

    def end(self, queue_id: int) -> None:
        with self._lock:
            self._open[queue_id] -= 1


class Consumers:
    """See the module."""

    def __init__(self, producers: Producers) -> None:
        self._producers = producers
        self._pushed: dict[str, PushConsumer] = {}
        self._polled: dict[str, LitePullConsumer] = {}
        self._seen: dict[str, _Seen] = {}

    async def stop(self, name: str) -> None:
        pushed, polled = self._pushed.pop(name, None), self._polled.pop(name, None)
        for consumer in (pushed, polled):
            if consumer is not None:
                await consumer.stop()

    # ---- push ------------------------------------------------------------------------------------

    async def push(self, options: Options) -> None:
        """Start a push consumer.

        Options: those of client_options, group, topic, tags or sql, listener, model, fail_times,
        retries, reply (a producer), from (LAST instead of FIRST), threads (plain functions),
        batch with ack_index, dead (put everything to the dead letters at once).
        """
        settings: PushKeywords = {
            "consume_from_where": LAST if options.get("from") == "LAST" else FIRST,
            "message_model": MessageModel(options.get("model", "CLUSTERING")),
            "suspend_current_queue_time": int(options.get("suspend_ms", "200")) / 1000,
        }
        if "retries" in options:
            settings["max_reconsume_times"] = int(options["retries"])
        consumer = PushConsumer(options["group"], client_options(options), **settings)
        consumer.subscribe(
            options["topic"],
            self._handler(options),
            tags=None if "sql" in options else options.get("tags"),
            sql=options.get("sql"),
            orderly=options.get("listener") == "orderly",
            batch=int(options.get("batch", "1")),
        )
        await consumer.start()
        self._pushed[options["name"]] = consumer

    def _handler(self, options: Options) -> Callable[..., Any]:
        name = options["name"]
        seen = self._seen[name] = _Seen()
        fail_times = int(options.get("fail_times", "0"))

        def look(message: MessageExt) -> None:
            report(name, message)
            if "dead" in options:
                raise DeadLetter
            if message.reconsume_times < fail_times:
                raise RetryLater

        async def handle(message: MessageExt) -> None:
            seen.begin(message.queue_id)
            try:
                await asyncio.sleep(0)  # another handler of the queue, if there is one, comes in
                look(message)
                if "reply" in options and "CORRELATION_ID" in message.properties:
                    body = f"reply to {message.keys[0]}".encode()
                    await self._producers.get(options["reply"]).reply(message, body)
            finally:
                seen.end(message.queue_id)

        def handle_in_thread(message: MessageExt) -> None:
            seen.begin(message.queue_id)
            try:
                look(message)
            finally:
                seen.end(message.queue_id)

        async def handle_batch(messages: list[MessageExt]) -> int:
            for message in messages:
                report(name, message)
            again = any(message.reconsume_times for message in messages)
            return len(messages) if again else int(options["ack_index"])

        if "batch" in options:
            return handle_batch
        return handle_in_thread if "threads" in options else handle

    async def assignment(self, options: Options) -> list[int]:
        """The queues of a topic that a consumer has, by their ids."""
        name = options["name"]
        found = (
            self._pushed[name].assignment if name in self._pushed else self._polled[name].assignment
        )
        return sorted(queue.queue_id for queue in found if queue.topic == options["topic"])

    async def most_at_once(self, options: Options) -> int:
        """The most handlers that worked on one queue at a time."""
        return self._seen[options["name"]].most_at_once

    # ---- pull ------------------------------------------------------------------------------------

    async def lite(self, options: Options) -> None:
        """Start a lite pull consumer. Options: those of client_options, group, topic, tags.

        With assign it takes all queues from their beginning, otherwise its share of the group.
        """
        consumer = LitePullConsumer(
            options["group"], client_options(options), consume_from_where=FIRST, auto_commit=False
        )
        if "assign" in options:
            await consumer.start()
            queues = await consumer.fetch_queues(options["topic"])
            consumer.assign(queues)
            for queue in queues:
                await consumer.seek_to_begin(queue)
        else:
            consumer.subscribe(options["topic"], options.get("tags"))
            await consumer.start()
        self._polled[options["name"]] = consumer

    async def poll(self, options: Options) -> int:
        """One poll, committed; the number of messages."""
        consumer = self._polled[options["name"]]
        messages = await consumer.poll(int(options["timeout_ms"]) / 1000)
        for message in messages:
            report(options["name"], message)
        await consumer.commit()
        return len(messages)

    async def pull(self, options: Options) -> int:
        """Read all queues to their ends. Options: those of client_options, group, topic, tags."""
        count = 0
        async with PullConsumer(options["group"], client_options(options)) as consumer:
            for queue in sorted(await consumer.fetch_queues(options["topic"])):
                offset, status = 0, PullStatus.FOUND
                while status is not PullStatus.NO_NEW_MSG:
                    result = await consumer.pull(queue, offset, 32, tags=options.get("tags"))
                    for message in result.messages:
                        report(options["name"], message)
                    count += len(result.messages)
                    offset, status = result.next_offset, result.status
        return count

    async def commit_offset(self, options: Options) -> None:
        """Save an offset for a group, as nobody: see :func:`_places`; queue, offset."""
        async with open_caller() as caller:
            queue = _places(options)[int(options["queue"])]
            await BrokerCalls(caller).update_offset(
                options["broker"], options["group"], queue, int(options["offset"])
            )

    async def committed(self, options: Options) -> list[int | None]:
        """The offsets that a broker keeps for a group, asked as nobody: see :func:`_places`."""
        found: list[int | None] = []
        async with open_caller() as caller:
            for queue in _places(options):
                try:
                    offset = await BrokerCalls(caller).query_offset(
                        options["broker"], options["group"], queue
                    )
                except QueryNotFoundError:
                    found.append(None)
                else:
                    found.append(offset)
        return found

    async def read_arrow(self, options: Options) -> list[list[object]]:
        """All messages of a topic by way of Arrow: keys, queue, offset, tags, start of the body."""
        columns = ["keys", "queueId", "queueOffset", "tags", "body"]
        rows: list[list[object]] = []
        batches = read_arrow(
            options["topic"], client_options(options), columns=columns, tags=options.get("tags")
        )
        async with aclosing(batches):
            async for batch in batches:
                for row in batch.to_pylist():
                    body = row["body"].decode().split(" ", 1)[0]
                    rows.append([*(row[name] for name in columns[:-1]), body])
        return rows


def _places(options: Options) -> list[MessageQueue]:
    """The queues of a topic. Options: topic, broker_name, queues (how many), broker (its address).

    Who asks a broker about them need not be a member of the group, and so leaves it alone.
    """
    return [
        MessageQueue(topic=options["topic"], broker_name=options["broker_name"], queue_id=number)
        for number in range(int(options["queues"]))
    ]
