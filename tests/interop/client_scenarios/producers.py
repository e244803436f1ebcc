"""The producers of a process with our client, by name; every method here is a command."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from skylark.client.core.client_message import Message, MessageExt, SendResult, SendStatus, TxState
from skylark.client.core.client_options import ClientOptions
from skylark.client.producer.producer import Producer
from skylark.client.producer.producer_settings import ProducerKeywords
from skylark.client.producer.queue_selector import select_by_hash
from skylark.client.producer.send_options import SendKeywords
from skylark.core.errors import SkylarkError
from skylark.wire.bodies.common_body import MessageQueue
from tests.interop.client_scenarios.records import Options, client_options, emit, numbered

SEND_TIMEOUT_S: Final = 10.0
#: How long a sender in the background rests after a message, and after a failure.
_PAUSE_S: Final = 0.002
_FAILED_PAUSE_S: Final = 0.05


class Decider:
    """Answers for transactions: what a message's own property says, check by check."""

    def __init__(self) -> None:
        self._checks: Counter[str] = Counter()

    async def execute(self, message: Message, arg: Any) -> TxState | None:
        if arg == "RAISE":
            raise RuntimeError("the local transaction fails")
        return TxState(arg)

    async def check(self, message: MessageExt) -> TxState:
        key = " ".join(message.keys)
        answers = message.properties["later"].split(",")
        answer = answers[min(self._checks[key], len(answers) - 1)]
        self._checks[key] += 1
        emit(
            event="checked",
            keys=key,
            answer=answer,
            times=message.properties.get("TRANSACTION_CHECK_TIMES"),
            topic=message.topic,
            id=message.transaction_id,
        )
        return TxState(answer)


class _Sender:
    """A task that sends, and what came of it."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.ending = False
        self.acknowledged = 0
        self.failures = 0


class Producers:
    """See the module."""

    def __init__(self) -> None:
        self._started: dict[str, Producer] = {}
        self._senders: dict[str, _Sender] = {}

    def get(self, name: str) -> Producer:
        return self._started[name]

    async def stop(self, name: str) -> None:
        producer = self._started.pop(name, None)
        if producer is not None:
            await producer.stop()

    async def producer(self, options: Options) -> None:
        """Options: those of client_options, group, compress (a type), linger_ms, alone."""
        settings: ProducerKeywords = {"send_timeout": SEND_TIMEOUT_S}
        if "compress" in options:
            settings["compress_type"] = options["compress"]
        if "linger_ms" in options:
            settings["linger"] = int(options["linger_ms"]) / 1000
        if "alone" in options:
            settings["batching"] = False
        made: ClientOptions = client_options(options)
        producer = Producer(options["group"], made, transaction_listener=Decider(), **settings)
        await producer.start()
        self._started[options["name"]] = producer

    async def send(self, options: Options) -> list[object]:
        """Send numbered messages: key, queue, offset and id of each.

        Options: those of numbered, name, how (sync, concurrent, async, batch, oneway, shard,
        selector), count, first, queue (an id), delay (a level).
        """
        first = int(options.get("first", "0"))
        messages = [numbered(options, first + i) for i in range(int(options["count"]))]
        producer = self.get(options["name"])
        queue = await _queue(producer, options)
        extra: SendKeywords = {"queue": queue}
        if "delay" in options:
            extra["delay_level"] = int(options["delay"])
        how = options["how"]
        if how == "oneway":
            for message in messages:
                await producer.send_oneway(message, **extra)
            return []
        if how == "batch":
            results = await producer.send_batch(messages, **extra)
        elif how == "concurrent":
            results = await asyncio.gather(*(producer.send(each, **extra) for each in messages))
        elif how == "async":
            futures = [await producer.submit(each, **extra) for each in messages]
            results = [await future for future in futures]
        elif how == "shard":
            results = [await producer.send(each, shard=_shard_of(each)) for each in messages]
        elif how == "selector":
            results = [
                await producer.send(each, selector=select_by_hash, selector_arg=_shard_of(each))
                for each in messages
            ]
        else:
            results = [await producer.send(each, **extra) for each in messages]
        return [_shown(each, result) for each, result in zip(messages, results, strict=True)]

    async def send_timed(self, options: Options) -> list[str | None]:
        """Send one message for a later time: its status, and the handle to recall it."""
        delay = timedelta(milliseconds=int(options["delay_ms"]))
        how: SendKeywords = {"delay": delay}
        if options["how"] == "at":
            how = {"deliver_at": datetime.now(UTC) + delay}
        message = numbered(options, int(options.get("first", "0")))
        result = await self.get(options["name"]).send(message, **how)
        return [result.status.value, result.recall_handle]

    async def recall(self, options: Options) -> str:
        return await self.get(options["name"]).recall(options["topic"], options["handle"])

    async def keep_sending(self, options: Options) -> None:
        """Send one message after the other, to the queues in turn, each until acknowledged."""
        sender = self._senders[options["name"]] = _Sender()
        producer = self.get(options["name"])
        queues = await producer.queues(options["topic"])

        async def work() -> None:
            while not sender.ending:
                number = sender.acknowledged
                queue = queues[number % len(queues)]
                try:
                    result = await producer.send(numbered(options, number), queue=queue, timeout=3)
                    _check(result)
                except SkylarkError:
                    sender.failures += 1
                    await asyncio.sleep(_FAILED_PAUSE_S)
                    continue
                emit(
                    event="sent",
                    producer=options["name"],
                    number=number,
                    queue=result.queue.queue_id,
                    offset=result.queue_offset,
                )
                sender.acknowledged += 1
                await asyncio.sleep(_PAUSE_S)

        sender.task = asyncio.create_task(work())

    async def stop_sending(self, options: Options) -> list[int]:
        """End keep-sending: the numbers of acknowledged messages and of failed attempts."""
        sender = self._senders.pop(options["name"])
        sender.ending = True
        assert sender.task is not None
        await sender.task
        return [sender.acknowledged, sender.failures]

    async def transaction(self, options: Options) -> str:
        """Options: those of numbered, name, first, answer, later (answers to checks, in turn).

        With block the context manager is used instead of the listener.
        """
        producer = self.get(options["name"])
        message = numbered({"later": "UNKNOW", **options}, int(options["first"]))
        answer = options["answer"]
        if "block" not in options:
            result = await producer.send_in_transaction(message, answer)
            return result.sent.status.value
        async with producer.transaction(message) as open_:
            if answer == TxState.ROLLBACK.value:
                open_.rollback()
            elif answer == TxState.UNKNOWN.value:
                open_.unknown()
        return open_.sent.status.value

    async def request(self, options: Options) -> str:
        """Send a request and wait for its reply. Options: those of numbered, first, timeout_ms."""
        reply = await self.get(options["name"]).request(
            numbered(options, int(options["first"])), timeout=int(options["timeout_ms"]) / 1000
        )
        return reply.body.decode()


async def _queue(producer: Producer, options: Options) -> MessageQueue | None:
    if "queue" not in options:
        return None
    queues = await producer.queues(options["topic"])
    return next(queue for queue in queues if queue.queue_id == int(options["queue"]))


def _shard_of(message: Message) -> str:
    return f"order-{int(message.properties['number']) % 10}"


def _check(result: SendResult) -> None:
    if result.status is not SendStatus.SEND_OK:
        raise SkylarkError(f"not sent: {result}")


def _shown(message: Message, result: SendResult) -> list[object]:
    _check(result)
    return [message.keys[0], result.queue.queue_id, result.queue_offset, result.msg_id]
