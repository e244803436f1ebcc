"""Timed messages across brokers: sent to one, recalled at either, delivered by the other.

Both run on one store directory in turn, and are stopped in order or killed in between. What was
delivered is read from the log itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from skylark.core.clock import LoopClock
from skylark.net.client import RemotingClient
from skylark.net.transport import TcpNetwork
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.message import MessageRecord, RecordError, iter_records
from skylark.wire.properties import encode_properties
from tests.interop.java import ApacheBroker
from tests.interop.ours import SkylarkBroker, SkylarkNamesrv
from tests.interop.process import poll_until

pytestmark = pytest.mark.interop

TOPIC = "Timed"
SETTINGS = {"recallMessageEnable": "true", "brokerIP1": "127.0.0.1"}
AnyBroker: TypeAlias = ApacheBroker | SkylarkBroker


@pytest.fixture(scope="module")
def namesrv() -> Iterator[SkylarkNamesrv]:
    with SkylarkNamesrv() as running:
        yield running


@pytest.fixture
def brokers(
    namesrv: SkylarkNamesrv, tmp_path: Path
) -> Iterator[tuple[SkylarkBroker, ApacheBroker]]:
    """Two brokers on one store; neither is started."""
    apache = ApacheBroker(namesrv.address, SETTINGS, folder=tmp_path / "apache")
    ours = SkylarkBroker(namesrv.address, SETTINGS, folder=tmp_path / "ours", port=apache.port)
    ours.settings["storePathRootDir"] = ours.store = apache.store
    apache.store.mkdir(parents=True)
    yield ours, apache
    ours.close()
    apache.close()


def call(broker: AnyBroker, request: Command) -> Command:
    async def once() -> Command:
        client = RemotingClient(TcpNetwork(), LoopClock())
        try:
            return await client.call(broker.address, request, 10)
        finally:
            await client.close()

    answer = asyncio.run(once())
    assert answer.code == 0, answer
    return answer


def send(broker: AnyBroker, name: str, delay_s: int) -> str:
    """Send a message; its handle."""
    properties = {"TIMER_DELAY_SEC": str(delay_s), "UNIQ_KEY": f"id-{name}"}
    ext = {
        "a": "pg", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "g": str(time.time_ns() // 1_000_000), "h": "0", "i": encode_properties(properties),
    }  # fmt: skip
    request = Command(code=RequestCode.SEND_MESSAGE_V2, ext=ext, body=name.encode())
    return (call(broker, request).ext or {})["recallHandle"]


def recall(broker: AnyBroker, handle: str) -> None:
    ext = {"topic": TOPIC, "recallHandle": handle, "producerGroup": "pg"}
    call(broker, Command(code=RequestCode.RECALL_MESSAGE, ext=ext))


def delivered(store: Path) -> list[MessageRecord]:
    """What the topic got, from the first log file; the rest of the file is empty."""
    records: list[MessageRecord] = []
    with contextlib.suppress(RecordError):
        records.extend(iter_records((store / "commitlog" / f"{0:020d}").read_bytes()))
    return [record for record in records if record.topic == TOPIC]


def await_bodies(store: Path, *names: str, once: bool = True) -> None:
    """Wait until these were delivered, and see that nothing else was, and nothing early."""
    wanted = {name.encode() for name in names}

    def there() -> bool:
        return {record.body for record in delivered(store)} >= wanted

    poll_until(there, timeout_s=60, what=f"delivery of {names}")
    records = delivered(store)
    counts = Counter(record.body for record in records)
    assert counts.keys() == wanted
    if once:
        assert set(counts.values()) == {1}
    for record in records:
        assert record.store_timestamp >= int(record.properties["TIMER_OUT_MS"]) + 1_000


def test_hand_over_in_order(brokers: tuple[SkylarkBroker, ApacheBroker]) -> None:
    ours, apache = brokers
    ours.start()
    send(ours, "a-soon", 1)
    first = send(ours, "a-recalled-here", 27)
    second = send(ours, "a-recalled-there", 27)
    send(ours, "a-late", 28)
    recall(ours, first)
    await_bodies(ours.store, "a-soon")
    assert ours.stop() == 0

    apache.start()
    recall(apache, second)
    await_bodies(apache.store, "a-soon", "a-late")
    send(apache, "b-soon", 1)
    first = send(apache, "b-recalled-here", 42)
    second = send(apache, "b-recalled-there", 42)
    send(apache, "b-late", 43)
    recall(apache, first)
    await_bodies(apache.store, "a-soon", "a-late", "b-soon")
    assert apache.stop() == 143

    ours.start()
    recall(ours, second)
    await_bodies(ours.store, "a-soon", "a-late", "b-soon", "b-late")
    assert ours.stop() == 0


def test_hand_over_after_kills(brokers: tuple[SkylarkBroker, ApacheBroker]) -> None:
    """Apache places messages again that its timer log has beyond the checkpoint: twice."""
    ours, apache = brokers
    ours.start()
    send(ours, "a", 25)
    ours.kill()

    apache.start()
    await_bodies(apache.store, "a", once=False)
    send(apache, "b", 20)
    apache.kill()

    ours.start()
    await_bodies(ours.store, "a", "b", once=False)
    assert sum(record.body == b"b" for record in delivered(ours.store)) == 1
    assert ours.stop() == 0
