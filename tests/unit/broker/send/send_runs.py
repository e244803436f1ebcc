"""Runs of sends of every kind, and the producer that sends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from skylark.core.names import SCHEDULE_TOPIC, TIMER_TOPIC
from skylark.net.connection import Connection
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult
from skylark.wire.batch import BatchMessage, encode_batch
from skylark.wire.bodies.config import SubscriptionGroupConfig
from skylark.wire.command import FLAG_ONEWAY, Command
from skylark.wire.frame import FrameBuffer, encode_frame
from tests.unit.broker.stored import Stored

BODY_SIZE_MAX: Final = 2_000


class Producer(asyncio.Protocol):
    """Keeps the answers by opaque, and in order."""

    def __init__(self) -> None:
        self.answers: list[Command] = []
        #: Called when answers come.
        self.on_answers: Callable[[], None] = lambda: None
        self._frames = FrameBuffer()

    def data_received(self, data: bytes) -> None:
        self.answers += self._frames.feed(data)
        self.on_answers()

    @property
    def codes(self) -> dict[int, int]:
        return {answer.opaque: answer.code for answer in self.answers}

    def ext(self, opaque: int) -> Mapping[str, str]:
        (found,) = (answer for answer in self.answers if answer.opaque == opaque)
        return found.ext or {}


async def connect(world: Stored) -> tuple[Connection, Producer]:
    """A producer, and the broker's end of its connection."""
    host, _, port = world.address.rpartition(":")
    before = set(world.features.endpoint.server.connections)
    _, producer = await world.network.connect(
        Producer, host, int(port), timeout_s=1, clock=world.clock
    )
    await world.clock.drain()
    (connection,) = world.features.endpoint.server.connections - before
    return connection, producer


async def send_together(world: Stored, requests: Sequence[Command]) -> Producer:
    connection, producer = await connect(world)
    connection.data_received(b"".join(map(encode_frame, requests)))
    await world.clock.drain()
    return producer


async def send_one_by_one(world: Stored, requests: Sequence[Command]) -> Producer:
    """The same without handlers of runs: each request goes to the one for a request alone."""
    connection, producer = await connect(world)
    world.features.endpoint.server.dispatcher.runs.clear()
    for request in requests:
        connection.data_received(encode_frame(request))
    await world.clock.drain()
    return producer


def run_sizes(world: Stored) -> list[int]:
    """Filled from now on: of how many messages each run of plain ones is."""
    sizes: list[int] = []
    put_run = world.features.puts.writer.put_run

    def noting(drafts: Sequence[Draft]) -> list[PutResult]:
        sizes.append(len(drafts))
        return put_run(drafts)

    world.features.puts.writer.put_run = noting  # type: ignore[method-assign]
    return sizes


# ---- requests ------------------------------------------------------------------------------------


def request(
    opaque: int,
    topic: str = "T",
    properties: str | None = None,
    body: bytes | None = None,
    *,
    oneway: bool = False,
    **ext: str,
) -> Command:
    """A plain message, unless something else is wanted."""
    if properties is None:
        properties = f"UNIQ_KEY\x01U{opaque}\x02TAGS\x01A\x02"
    fields = {
        "a": "pg", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "g": "1794710000000", "h": "0", "i": properties, **ext,
    }  # fmt: skip
    content = b"body %d" % opaque if body is None else body
    flag = FLAG_ONEWAY if oneway else 0
    return Command(code=310, opaque=opaque, ext=fields, body=content, flag=flag)


def with_properties(*pairs: str, **changes: Any) -> Callable[[int], Command]:
    """A message that has a unique id and these properties."""

    def make(opaque: int) -> Command:
        items = (f"UNIQ_KEY=U{opaque}", *pairs)
        text = "".join(item.replace("=", "\x01") + "\x02" for item in items)
        return request(opaque, properties=text, **changes)

    return make


def of(**changes: Any) -> Callable[[int], Command]:
    return lambda opaque: request(opaque, **changes)


def without_group(opaque: int) -> Command:
    made = request(opaque)
    assert made.ext is not None
    del made.ext["a"]
    return made


BATCH: Final = encode_batch([BatchMessage(b"one", b"UNIQ_KEY\x01B1\x02"), BatchMessage(b"two")])
PLAIN: Final[dict[str, Callable[[int], Command]]] = {
    "plain": request,
    "to another topic": of(topic="Other", e="1"),
    "to any queue": of(e="-1"),
    "to a topic that is not there yet": of(topic="New"),
    "to a system topic": of(topic="RMQ_SYS_TRACE_TOPIC"),
    "one-way": of(oneway=True),
    "does not wait": with_properties("WAIT=false"),
    "with flags": of(f="8", h="5", j="2"),
    "with an odd id": of(properties='UNIQ_KEY\x01a"\\\x03größe%s\x02'),
    "half by its flag alone": of(f="4"),
    "inner batch by its flag": of(f="128"),
    "large": of(body=bytes(BODY_SIZE_MAX)),
    "too large": of(body=bytes(BODY_SIZE_MAX + 1)),
    "too many properties": with_properties("p=" + "y" * 33_000),
}
OTHERS: Final[dict[str, Callable[[int], Command]]] = {
    "delayed": with_properties("DELAY=3"),
    "delayed by nonsense": with_properties("DELAY=soon"),
    "for a retry": of(topic="%RETRY%G"),
    "tried too often": of(topic="%RETRY%G", j="99"),
    "timed": with_properties("TIMER_DELAY_SEC=5"),
    "into the timer": with_properties("REAL_TOPIC=T", "REAL_QID=0", topic=TIMER_TOPIC),
    "into the timer for nobody": with_properties("REAL_TOPIC=Z", "REAL_QID=0", topic=TIMER_TOPIC),
    "half": with_properties("TRAN_MSG=true", "PGROUP=pg", f="4"),
    "half without a flag": with_properties("TRAN_MSG=true", "PGROUP=pg"),
    "batch": of(m="true", body=BATCH),
    "no batch": of(m="true", body=b"not a batch"),
    "empty": of(body=b""),
    "to no topic": of(topic="Nowhere", c="Nothing"),
    "to an illegal topic": of(topic="a b"),
    "to a forbidden topic": of(topic=SCHEDULE_TOPIC),
    "to an illegal queue": of(e="99"),
    "to a compacted topic": of(topic="Compacted"),
    "to a topic of batches": of(topic="Batches"),
    "without a unique id": of(properties="TAGS\x01A\x02"),
    "without properties": of(properties=""),
    "with a region": with_properties("MSG_REGION=mine", "POP_CK=c"),
    "no number": of(h="abc"),
    "no group": without_group,
}
KINDS: Final = {**PLAIN, **OTHERS}


def prepare(world: Stored) -> None:
    world.add_topic("T")
    world.add_topic("Other")
    world.load_topic("Compacted", attributes={"cleanup.policy": "COMPACTION"})
    world.add_topic("Batches", attributes={"+queue.type": "BatchCQ"})
    world.features.groups.table.update(SubscriptionGroupConfig(group_name="G", retry_max_times=2))
