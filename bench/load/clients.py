"""Producers and consumers that cost little: thousands of connections in one process.

Each is a protocol of asyncio with a table of callbacks for the answers it waits for. They do what
Java's clients do on the wire and nothing else; what happens to them is counted in one
:class:`Tally`.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import struct
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from skylark.wire.codes import CURRENT_VERSION, PullSysFlag, RequestCode, ResponseCode
from skylark.wire.command import FLAG_RESPONSE, Command
from skylark.wire.fastjson import encode_body
from skylark.wire.frame import FrameBuffer, encode_frame

PRODUCER_GROUP = "load-producers"
#: End of every client id, by which members in a list are counted without decoding it.
ID_END = "@load"
BODY = bytes(range(256)) * 4
SUSPEND_MS = 15_000
RECORD_SIZE = struct.Struct(">i")


@dataclass
class Tally:
    """What happened to all clients of a shape."""

    sent: int = 0
    stored: int = 0
    delivered: int = 0
    pulls: int = 0
    heartbeats: int = 0
    notices: int = 0
    lists: int = 0
    latencies_ms: array[float] = field(default_factory=lambda: array("d"))
    lateness_ms: array[float] = field(default_factory=lambda: array("d"))
    errors: Counter[str] = field(default_factory=Counter)

    def error(self, text: str) -> None:
        self.errors[re.sub(r"[0-9]+", "#", text)] += 1


OnAnswer = Callable[[Command], None]


class Client(asyncio.Protocol):
    """One connection; answers go to the callbacks of their requests."""

    def __init__(self, tally: Tally, client_id: str) -> None:
        self.tally = tally
        self.client_id = client_id
        self.closing = False
        self._frames = FrameBuffer()
        self._opaques = itertools.count(1)
        self._waiting: dict[int, OnAnswer] = {}
        self._transport: asyncio.Transport | None = None
        self._heartbeat = b""

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        for command in self._frames.feed(data):
            if not command.flag & FLAG_RESPONSE:
                self.told(command)
            elif (answered := self._waiting.pop(command.opaque, None)) is not None:
                answered(command)
            else:
                self.tally.error(f"an answer to nothing, code {command.code}")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closing:
            self.tally.error(f"a connection was lost: {exc}")

    def told(self, request: Command) -> None:
        """The broker sent a request."""
        self.tally.error(f"the broker asked {request.code}")

    def request(
        self, code: int, ext: dict[str, str], body: bytes | None, answered: OnAnswer
    ) -> None:
        opaque = next(self._opaques)
        self._waiting[opaque] = answered
        command = Command(code=code, opaque=opaque, version=CURRENT_VERSION, ext=ext, body=body)
        assert self._transport is not None
        self._transport.write(encode_frame(command))

    def close(self) -> None:
        self.closing = True
        if self._transport is not None:
            self._transport.close()

    def expect(self, what: str, answer: Command, *codes: int) -> bool:
        if answer.code in codes:
            return True
        self.tally.error(f"{what}: code {answer.code}, {answer.remark}")
        return False

    # --- heartbeats ---

    def heartbeat_data(self) -> HeartbeatData:
        raise NotImplementedError

    def beat(self) -> None:
        self._heartbeat = self._heartbeat or encode_body(self.heartbeat_data())
        self.request(RequestCode.HEART_BEAT, {}, self._heartbeat, self._beaten)

    def _beaten(self, answer: Command) -> None:
        if self.expect("heartbeat", answer, ResponseCode.SUCCESS):
            self.tally.heartbeats += 1


class Producer(Client):
    """Sends; the time of each send counts from when it was due."""

    def heartbeat_data(self) -> HeartbeatData:
        producers = [ProducerData(group_name=PRODUCER_GROUP)]
        return HeartbeatData(client_id=self.client_id, producer_data_set=producers)

    def send(self, topic: str, queue_id: int, number: int, due_at: float) -> None:
        ext = {
            "a": PRODUCER_GROUP, "b": topic, "c": "TBW102", "d": "8", "e": str(queue_id),
            "f": "0", "g": str(time.time_ns() // 1_000_000), "h": "0",
            "i": f"UNIQ_KEY\x017F0000010A2B18B4AAC2{number:012X}\x02WAIT\x01true\x02TAGS\x01TagA",
        }  # fmt: skip
        tally = self.tally

        def answered(answer: Command) -> None:
            tally.latencies_ms.append((time.monotonic() - due_at) * 1000)
            if self.expect("send", answer, ResponseCode.SUCCESS):
                tally.stored += 1

        tally.sent += 1
        tally.lateness_ms.append((time.monotonic() - due_at) * 1000)
        self.request(RequestCode.SEND_MESSAGE_V2, ext, BODY, answered)


class Consumer(Client):
    """A member of a group that owns one queue."""

    def __init__(self, tally: Tally, client_id: str, group: str, topic: str, queue_id: int) -> None:
        super().__init__(tally, client_id)
        self._group = group
        self._topic = topic
        self._queue_id = queue_id
        self._offset = 0
        self._is_asking = False
        self._ask_again = False
        #: Members of the group as far as this one has heard.
        self.known_count = 0

    def heartbeat_data(self) -> HeartbeatData:
        data = ConsumerData(
            group_name=self._group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            subscription_data_set=[SubscriptionData(topic=self._topic, sub_string="*")],
        )
        return HeartbeatData(client_id=self.client_id, consumer_data_set=[data])

    def join(self) -> None:
        self.beat()
        self.pull()

    def pull(self) -> None:
        ext = {
            "consumerGroup": self._group, "topic": self._topic, "queueId": str(self._queue_id),
            "queueOffset": str(self._offset), "maxMsgNums": "32",
            "sysFlag": str(PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUSPEND),
            "commitOffset": str(self._offset), "suspendTimeoutMillis": str(SUSPEND_MS),
            "subVersion": "0",
        }  # fmt: skip
        self.request(RequestCode.PULL_MESSAGE, ext, None, self._pulled)

    def _pulled(self, answer: Command) -> None:
        if self.closing:
            return
        tally = self.tally
        tally.pulls += 1
        found, none = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
        if not self.expect("pull", answer, found, none):
            return
        offset, count = int((answer.ext or {})["nextBeginOffset"]), count_records(answer.body)
        if offset - self._offset != count:
            tally.error(f"a pull from {self._offset} to {offset} brought {count} messages")
        self._offset = offset
        tally.delivered += count
        self.pull()

    def told(self, request: Command) -> None:
        if request.code != RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            super().told(request)
            return
        self.tally.notices += 1
        if self._is_asking:
            self._ask_again = True
        else:
            self._ask()

    def _ask(self) -> None:
        self._is_asking, self._ask_again = True, False
        ext = {"consumerGroup": self._group}
        self.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext, None, self._listed)

    def _listed(self, answer: Command) -> None:
        self._is_asking = False
        if self.expect("list of members", answer, ResponseCode.SUCCESS):
            self.tally.lists += 1
            # Decoding a thousand lists of a thousand names would make the generator late.
            self.known_count = (answer.body or b"").count(ID_END.encode())
        if self._ask_again and not self.closing:
            self._ask()


def count_records(body: bytes | None) -> int:
    """How many message records a pull brought; each begins with its size."""
    if body is None:
        return 0
    count, position = 0, 0
    while position < len(body):
        (size,) = RECORD_SIZE.unpack_from(body, position)
        if size <= 0 or position + size > len(body):
            raise ValueError(f"a record of {size} bytes at {position} of {len(body)}")
        position += size
        count += 1
    return count
