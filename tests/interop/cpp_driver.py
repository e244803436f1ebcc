"""The real C++ client, told line by line what to do: the twin of ``java/ClientDriver.java``.

Runs with the wheel ``rocketmq`` and nothing of ours. The commands, options and records are those of
the Java program, as far as the wheel has what they need.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from rocketmq.client import (  # type: ignore[import-not-found]
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    RecvMessage,
    SendStatus,
)
from rocketmq.ffi import MessageModel, dll  # type: ignore[import-not-found]

Options = dict[str, str]

CONSUMED, RECONSUME_LATER = 0, 1
SEND_TIMEOUT_MS = 10_000
DEADLINE_S = 60.0

_records = os.fdopen(os.dup(1), "w")
_records_lock = threading.Lock()


def emit(**record: object) -> None:
    with _records_lock:
        _records.write(json.dumps(record) + "\n")
        _records.flush()


def text(value: bytes | None) -> str:
    return (value or b"").decode()


def report(consumer: str, message: Any) -> None:
    body = text(message.body)
    emit(
        event="got",
        consumer=consumer,
        topic=message.topic,
        queue=message.queue_id,
        offset=message.queue_offset,
        keys=text(message.keys),
        tags=text(message.tags),
        body=body.split(" ", 1)[0],
        size=len(body),
        times=message.reconsume_times,
        born=message.born_timestamp,
        at=int(time.time() * 1000),
        id=message.id,
        properties={"number": text(message["number"])},
    )


def numbered(options: Options, number: int) -> Any:
    """One numbered message, as the Java program makes it."""
    key = f"{options.get('prefix', 'm')}-{number}"
    body = key
    filler = 0
    while len(body) < int(options.get("size", "0")):
        body += f" {filler}"
        filler += 1
    tags = options.get("tags", "").split(",")
    message = Message(options["topic"])
    message.set_keys(key)
    message.set_tags(tags[number % len(tags)])
    message.set_body(body)
    message.set_property("number", str(number))
    if "delay" in options:
        message.set_delay_time_level(int(options["delay"]))
    return message


class Driver:
    """The producers and consumers of this process, by name."""

    def __init__(self) -> None:
        self._producers: dict[str, Any] = {}
        self._consumers: dict[str, Any] = {}
        self._senders: dict[str, Sender] = {}

    def run(self, command: str, options: Options) -> object:
        method = getattr(self, f"do_{command.replace('-', '_')}")
        result: object = method(options)
        return result

    def do_producer(self, options: Options) -> None:
        producer = Producer(options["group"], timeout=SEND_TIMEOUT_MS)
        producer.set_namesrv_addr(options["namesrv"])
        producer.start()
        self._producers[options["name"]] = producer

    def do_send(self, options: Options) -> list[object]:
        producer = self._producers[options["name"]]
        first = int(options.get("first", "0"))
        messages = [numbered(options, first + i) for i in range(int(options["count"]))]
        numbers = range(first, first + len(messages))
        if options["how"] == "oneway":
            for message in messages:
                producer.send_oneway(message)
            return []
        if options["how"] == "async":
            return self._send_async(producer, messages)
        results: list[object] = []
        for number, message in zip(numbers, messages, strict=True):
            if "queue" in options:
                queue = int(options["queue"])
                sent = producer.send_orderly(message, 0, queue_selector=lambda *_, q=queue: q)
            else:
                sent = producer.send_sync(message)
            assert sent.status == SendStatus.OK
            results.append([number, None, sent.offset, sent.msg_id])
        return results

    def _send_async(self, producer: Any, messages: list[Any]) -> list[object]:
        results: list[object] = []
        failures: list[object] = []
        for message in messages:
            producer.send_async(
                message,
                lambda sent: results.append([None, None, sent.offset, sent.msg_id]),
                failures.append,
            )
        deadline = time.monotonic() + DEADLINE_S
        while len(results) < len(messages) and not failures:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(results)} of {len(messages)} sent")
            time.sleep(0.01)
        if failures:
            raise RuntimeError(f"not all sent: {failures}")
        return results

    def do_keep_sending(self, options: Options) -> None:
        sender = Sender(self._producers[options["name"]], options)
        self._senders[options["name"]] = sender
        sender.start()

    def do_stop_sending(self, options: Options) -> list[int]:
        sender = self._senders.pop(options["name"])
        sender.ending = True
        sender.join()
        return [sender.number, sender.failures]

    def do_push(self, options: Options) -> None:
        name = options["name"]
        fail_times = int(options.get("fail_times", "0"))
        consumer = PushConsumer(
            options["group"],
            orderly=options.get("listener") == "orderly",
            message_model=MessageModel[options.get("model", "CLUSTERING")],
        )
        consumer.set_namesrv_addr(options["namesrv"])
        consumer.set_instance_name(name)
        # The rest of a batch would go back to the broker with the first one that fails.
        consumer.set_message_batch_max_size(1)

        def on_message(_consumer: object, handle: object) -> int:
            message = RecvMessage(handle)
            report(name, message)
            return CONSUMED if message.reconsume_times >= fail_times else RECONSUME_LATER

        # The wheel's own subscribe() cannot say "later": it raises inside the library's callback.
        tags = options.get("tags", "*").encode()
        dll.Subscribe(consumer._handle, options["topic"].encode(), tags)
        consumer._register_callback(on_message)
        consumer.start()
        self._consumers[name] = consumer

    def do_pull(self, options: Options) -> int:
        consumer = PullConsumer(options["group"])
        consumer.set_namesrv_addr(options["namesrv"])
        consumer.start()
        PullConsumer.offset_table.clear()  # one for all consumers of the process
        count = 0
        for message in consumer.pull(options["topic"], options.get("tags", "*")):
            report(options["name"], message)
            count += 1
        consumer.shutdown()
        return count

    def do_stop(self, options: Options) -> None:
        for table in (self._producers, self._consumers):
            if options["name"] in table:
                table.pop(options["name"]).shutdown()

    do_stop_soon = do_stop


class Sender(threading.Thread):
    """Sends messages one after the other to the queues in turn, each until acknowledged."""

    def __init__(self, producer: Any, options: Options) -> None:
        super().__init__(daemon=True)
        self._producer = producer
        self._options = options
        self.ending = False
        self.number = 0
        self.failures = 0

    def run(self) -> None:
        chosen: list[int] = []

        def choose(queue_count: int, _message: object, _argument: object) -> int:
            chosen[:] = [self.number % queue_count]
            return chosen[0]

        while not self.ending:
            message = numbered(self._options, self.number)
            try:
                sent = self._producer.send_orderly(message, 0, retry_times=0, queue_selector=choose)
                assert sent.status == SendStatus.OK
            except Exception:  # noqa: BLE001 - whatever it is, the message is sent again
                self.failures += 1
            else:
                emit(
                    event="sent",
                    producer=self._options["name"],
                    number=self.number,
                    queue=chosen[0],
                    offset=sent.offset,
                )
                self.number += 1
            time.sleep(0.002)


def main() -> None:
    os.dup2(2, 1)  # what the library prints is no record
    driver = Driver()
    emit(event="ready")
    for line in sys.stdin:
        command, *words = line.rstrip("\n").split("\t")
        try:
            result = driver.run(command, dict(word.split("=", 1) for word in words))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shall see it
            emit(event="failed", cause=repr(error))
        else:
            emit(event="done", result=result)
    os._exit(0)  # without the goodbyes of the clients that still run


if __name__ == "__main__":
    main()
