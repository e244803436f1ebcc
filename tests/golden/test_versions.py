"""Stores and configurations that released versions have written open with this one.

A test unpacks ``data/skylark-VERSION.tar.xz``, which :mod:`tests.support.release_folder` has made,
starts this version on it, and reads everything; nothing may be missing, and the settings, groups
and offsets go on, as do messages that are delayed, in a transaction, failed, or popped and not
acknowledged. ``tests/spark/test_old_pipeline.py`` does the same with the pipeline.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark import ClientOptions, Message, MessageExt, TxState
from skylark.aio import Admin, LitePullConsumer, PopConsumer, Producer, PushConsumer
from tests.support.release_folder import (
    CHANGED,
    CONSUMED,
    COUNT,
    FAILED,
    FAILING,
    FIRST,
    GROUP,
    LATER,
    POP_GROUP,
    POPPED,
    RELEASES,
    TOPIC,
    broadcast,
    client,
    read_on,
    skylark,
    unpacked,
    up,
)  # fmt: skip

# ---- this version reads it -----------------------------------------------------------------------


def test_there_is_a_release() -> None:
    assert [path.name for path in RELEASES][:1] == ["skylark-0.1.0.tar.xz"]
    assert all(path.stat().st_size < 60_000 for path in RELEASES)


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_the_store_of_a_release_goes_on(release: Path, tmp_path: Path) -> None:
    folder = unpacked(release, tmp_path)
    settings = skylark("broker", "-c", str(folder / "broker.conf"), "-p").splitlines()
    assert {*CHANGED, "fileReservedTime=1000000"} <= set(settings)
    with up(folder, "--set", "transactionCheckInterval=1000") as namesrv:
        asyncio.run(read_all(namesrv))
        asyncio.run(go_on(namesrv))
        asyncio.run(read_dead_letter(namesrv))
        asyncio.run(pop_again(namesrv))
        assert asyncio.run(read_on(broadcast(client(namesrv), folder), 1)) == {b"3"}
    # What it has written reads as well, after a clean stop.
    with up(folder) as namesrv:
        asyncio.run(read_all(namesrv, more=1))


async def read_all(namesrv: str, more: int = 0) -> None:
    options = ClientOptions(namesrv=namesrv)
    async with Admin(options) as admin:
        stored = await admin.offsets.bounds(TOPIC)
        assert sum(queue.count for queue in stored.queues) == COUNT + more
        progress = await admin.groups.progress(GROUP, TOPIC)
        assert sum(queue.lag for queue in progress.queues) == COUNT + more - CONSUMED
    seen: list[MessageExt] = []
    consumer = LitePullConsumer("reader", options, consume_from_where=FIRST, auto_commit=False)
    async with consumer.subscribe(TOPIC):
        while len(seen) < COUNT + more:
            batch = await consumer.poll(30)
            assert batch, f"{len(seen)} messages came"
            seen += batch
    numbers = sorted(int(message.body.split()[0]) for message in seen)
    assert numbers == list(range(COUNT + more))
    assert all(message.keys == (f"k-{int(message.body.split()[0])}",) for message in seen)
    assert {message.tag for message in seen} == {"even", "odd"}


async def go_on(namesrv: str) -> None:
    """Delayed, failed and undecided messages come, and new ones can be stored."""
    options = ClientOptions(namesrv=namesrv)
    wanted = {b"timed", b"level", b"committed", b"undecided", b"retry"}
    seen: set[bytes] = set()
    done = asyncio.Event()

    async def take(message: MessageExt) -> None:
        seen.add(message.body)
        if message.body == b"retry":
            assert message.reconsume_times == 1
        if seen >= wanted:
            done.set()

    later = PushConsumer("later-readers", options, consume_from_where=FIRST)
    later.subscribe(LATER, take)
    failing = PushConsumer(FAILING, options)
    failing.subscribe(FAILED, take)
    producer = Producer("golden-producer", options)

    @producer.transaction_checker
    async def check(message: MessageExt) -> TxState:
        return TxState.COMMIT

    async with later, failing, producer:
        message = Message(TOPIC, b"%d" % COUNT, tag="even", keys=[f"k-{COUNT}"])
        await producer.send(message)
        async with asyncio.timeout(60):
            await done.wait()
    assert seen == wanted  # "rolled back" and "dead" stay where they are


async def read_dead_letter(namesrv: str) -> None:
    consumer = LitePullConsumer("reader", ClientOptions(namesrv=namesrv), consume_from_where=FIRST)
    async with consumer.subscribe(f"%DLQ%{FAILING}"):
        (message,) = await consumer.poll(30)
    assert message.body == b"dead"


async def pop_again(namesrv: str) -> None:
    """What was popped and not acknowledged comes again, and what was acknowledged does not."""
    attempts: dict[bytes, int] = {}
    consumer = PopConsumer(POP_GROUP, ClientOptions(namesrv=namesrv), consume_from_where=FIRST)
    async with consumer.subscribe(POPPED), asyncio.timeout(60):
        while len(attempts) < 2:
            for message in await consumer.receive(2, wait=5):
                attempts[message.body] = message.attempt
                await message.ack()
    assert attempts == {b"1": 2, b"2": 1}
