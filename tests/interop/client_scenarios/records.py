"""What goes in and out of the process with our client: options, numbered messages, records."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any, TypeAlias

from skylark.client.core.client_message import Message, MessageExt
from skylark.client.core.client_options import ClientOptions

Options: TypeAlias = dict[str, str]

_lock = threading.Lock()


def emit(**record: object) -> None:
    """Write one record; from any thread."""
    line = json.dumps(record)
    with _lock:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def report(consumer: str, message: MessageExt) -> None:
    """Write the record of one delivery."""
    body = message.body.decode()
    emit(
        event="got",
        consumer=consumer,
        topic=message.topic,
        queue=message.queue_id,
        offset=message.queue_offset,
        keys=" ".join(message.keys),
        tags=message.tag,
        body=body.split(" ", 1)[0],
        size=len(body),
        times=message.reconsume_times,
        born=message.record.born_timestamp,
        at=int(time.time() * 1000),
        id=message.msg_id,
        properties=dict(message.properties),
    )


def numbered(options: Options, number: int) -> Message:
    """One numbered message, as the Java program makes it.

    Options: topic, prefix, tags (used in turn), size. Its body begins with its key.
    """
    key = f"{options.get('prefix', 'm')}-{number}"
    body, filler = key, 0
    while len(body) < int(options.get("size", "0")):
        body += f" {filler}"
        filler += 1
    tags = options.get("tags", "").split(",")
    properties = {"number": str(number)}
    if "later" in options:
        properties["later"] = options["later"]
    return Message(
        options["topic"],
        body.encode(),
        tag=tags[number % len(tags)] or None,
        keys=[key],
        properties=properties,
    )


def client_options(options: Options) -> ClientOptions:
    """Who a client is and how soon it notices a change, as the Java program has it."""
    more: dict[str, Any] = {}
    if "namespace" in options:
        more["namespace"] = options["namespace"]
    if "trace" in options:
        more["trace"] = True
    return ClientOptions(
        namesrv=options["namesrv"],
        instance_name=options["name"],
        route_interval=1.0,
        heartbeat_interval=1.0,
        request_timeout=10.0,
        vip_channel="vip" in options,
        **more,
    )
