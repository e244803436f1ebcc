"""Brokers with delayed messages, on a disk in memory that can fail, and what tests ask of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.store.message_store import MessageStore
from skylark.store.store_results import PutStatus
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import START_MS, VirtualClock
from skylark.wire.codes import RequestCode
from tests.unit.broker.stored import Stored, await_flushes, in_place, texts

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
ROOT = Path("/broker")
#: What the broker does by the clock, seldom: hours pass more quickly then.
RARELY = {
    "flushIntervalCommitLog": "1000000",
    "flushIntervalConsumeQueue": "1000000",
    "cleanResourceInterval": "1000000",
}
#: The log reaches the disk only when somebody waits for it.
LAZY = {"flushIntervalCommitLog": "100000000", "flushCommitLogThoroughInterval": "100000000"}


@asynccontextmanager
async def on_disk(
    disk: FaultyFileSystem,
    start_ms: int = START_MS,
    given: dict[str, str] | None = None,
    *,
    orderly: bool = True,
) -> AsyncIterator[Stored]:
    """A broker on a disk in memory, at a time; ``orderly`` false: it dies with its disk."""
    clock = VirtualClock(start_ms)
    network = MemoryNetwork(clock=clock)
    config = load_broker_config(texts(ROOT, **(given or {})))
    broker = Broker(config, network=network, clock=clock, files=disk, in_thread=in_place)
    await broker.start()
    world = Stored(broker, clock, network)
    await_flushes(world)
    try:
        yield world
    except BaseException:
        orderly = False  # it might wait for time to pass
        raise
    finally:
        await world.client.close()
        stopping = asyncio.create_task(broker.stop())
        if orderly:
            await stopping
        else:
            disk.stop()
            with contextlib.suppress(Exception, ExceptionGroup):
                await clock.advance(minutes=1)
                await stopping


async def delayed(
    world: Stored, level: int, body: bytes = b"x", properties: str = "", **fields: str
) -> None:
    properties = f"DELAY\x01{level}\x02{properties}"
    answer = await world.send("T", body, 0, properties, RequestCode.SEND_MESSAGE_V2, **fields)
    assert answer.code == 0


def bodies(world: Stored, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in world.records(topic, queue_id)]


async def flush(store: MessageStore) -> None:
    """Bring the log to the disk."""
    flushed = asyncio.get_running_loop().create_future()
    store.when_all_on_disk(flushed.set_result)
    assert await flushed is PutStatus.PUT_OK


def saved_offsets(disk: FaultyFileSystem) -> dict[int, int]:
    path = ROOT / "store/config/delayOffset.json"
    if not disk.exists(path):
        return {}
    content = disk.read_file(path).decode()
    quoted = re.sub(r"^(\s*)(\d+):", r'\1"\2":', content, flags=re.MULTILINE)
    return {int(level): offset for level, offset in json.loads(quoted)["offsetTable"].items()}
