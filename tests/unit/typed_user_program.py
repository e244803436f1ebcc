"""A program as users write them, for the type checker: ``mypy --strict`` must have no complaint.

It is never run. ``reveal_type`` shows what a user's editor would show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, reveal_type

from skylark import (
    ClientOptions,
    ConsistentHash,
    ConsumeFromWhere,
    DeadLetter,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    RetryLater,
    SendContext,
    SkylarkError,
    TxState,
    aio,
    sync,
)

options = ClientOptions(namesrv=["127.0.0.1:9876"], acl=("key", "secret"), request_timeout=2.5)


class Hook:
    def before_send(self, context: SendContext) -> None:
        context.values["began"] = context.broker_address


def last(queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
    return queues[-1]


def blocking() -> None:
    with sync.Producer("group", options, hooks=[Hook()], retries=1) as producer:
        result = producer.send(Message("T", b"x", tag="A"), shard="k", delay=timedelta(minutes=1))
        reveal_type(result)
        producer.send(Message("T", b"x"), selector=last)
        producer.send_batch([Message("T", b"x")], timeout=1)

        @producer.transaction_checker
        def check(message: MessageExt) -> TxState:
            return TxState.COMMIT if message.transaction_id else TxState.UNKNOWN

        with producer.transaction(Message("T", b"x")) as tx:
            tx.rollback()
    consumer = sync.PushConsumer("group", allocation=ConsistentHash(), concurrency=4)

    @consumer.subscribe("T", sql="a > 5")
    def handle(message: MessageExt) -> None:
        if message.reconsume_times > 3:
            raise DeadLetter("enough")
        raise RetryLater(level=3)

    @consumer.subscribe("U", batch=32)
    def handle_many(messages: list[MessageExt]) -> int:
        return len(messages) - 1

    consumer.run()
    with sync.LitePullConsumer("group", auto_commit=False).subscribe("T") as lite:
        for batch in lite.batches():
            reveal_type(batch)
            lite.commit(batch)
        for message in lite:
            lite.commit({message.queue: message.queue_offset + 1})
    reveal_type(producer.submit(Message("T", b"x")))
    reveal_type(producer.request(Message("T", b"x"), timeout=timedelta(seconds=3)))
    for arrow in sync.read_arrow("T", start=datetime(2026, 1, 1, tzinfo=UTC)):
        del arrow


async def asynchronous() -> None:
    try:
        async with aio.Producer("group", options) as producer:
            reveal_type(await producer.send(Message("T", b"x")))
            reveal_type(await producer.submit(Message("T", b"x")))
    except TimeoutError:
        raise
    except SkylarkError as error:
        if not error.retriable:
            raise
    consumer = aio.PushConsumer(
        "group",
        options,
        message_model=MessageModel.BROADCASTING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
        consume_timestamp=datetime(2026, 1, 1, tzinfo=UTC),
        consume_timeout=timedelta(minutes=1),
    )

    @consumer.subscribe("T", orderly=True)
    async def handle(message: MessageExt) -> None:
        await asyncio.to_thread(print, message.body)

    await consumer.run()
    lite = aio.LitePullConsumer("group").assign(
        [MessageQueue(topic="T", broker_name="b", queue_id=0)]
    )
    async with lite:
        async for batch in lite.batches():
            reveal_type(batch)
