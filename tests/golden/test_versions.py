"""Stores and configurations that released versions have written open with this one.

``data/skylark-VERSION.tar.xz`` has three things: ``data``, the folder of a stopped ``skylark up``
with one broker and small files; ``broker.conf``, which a broker of that version has changed; and
``offsets``, the folder in which a broadcasting consumer keeps its offsets.
``write_folder`` below has made it; to add that of a new release, run this file with the released
version installed::

    python -m tests.golden.test_versions tests/golden/data/skylark-0.2.0.tar.xz

A test copies the folder, starts this version on it, and reads everything; nothing may be missing,
and the settings, groups and offsets go on, as do messages that are delayed, in a transaction,
failed, or popped and not acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from skylark import (
    ClientOptions,
    ConsumeFromWhere,
    DeadLetter,
    Message,
    MessageExt,
    MessageModel,
    RetryLater,
    TxState,
)
from skylark.aio import Admin, LitePullConsumer, PopConsumer, Producer, PushConsumer

DATA: Final = Path(__file__).parent / "data"
RELEASES: Final = sorted(DATA.glob("skylark-*.tar.xz"))
#: What its user wrote into ``broker.conf``; the broker has changed the last line, and added one.
SETTINGS_FILE: Final = """\
# Small files, and no retention.
brokerName=settings
brokerIP1=127.0.0.1
listenPort=0
mappedFileSizeCommitLog=262144
mappedFileSizeConsumeQueue=6000
maxHashSlotNum=100
maxIndexNum=400
mappedFileSizeTimerLog=1048576
fileReservedTime=1000000
maxMessageSize=65536
"""
CHANGED: Final = ("maxMessageSize=131072", "flushDelayOffsetInterval=9000")
TOPIC, GROUP, COUNT, CONSUMED = "Golden", "golden-group", 100, 60
LATER, FAILED, BATCHED, POPPED = "GoldenLater", "GoldenFailed", "GoldenBatched", "GoldenPopped"
FAILING, ALL_GROUP, POP_GROUP = "golden-failing", "golden-broadcast", "golden-pop"
FIRST: Final = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@contextmanager
def up(folder: Path, *options: str) -> Iterator[str]:
    """``skylark up`` on a folder, with its settings; the address of its name server."""
    with serving(
        "up", "--data", str(folder / "data"), "--namesrv-port", "0", "--broker-port", "0",
        "--config", str(folder / "broker.conf"), *options,
    ) as ready:  # fmt: skip
        assert ready.startswith("ready namesrv="), ready
        yield ready.split()[1].removeprefix("namesrv=")


@contextmanager
def serving(*command: str, home: Path | None = None) -> Iterator[str]:
    """A server of the command line, stopped at the end; the line that it prints when ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "skylark", "--log-level", "warning", *command],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **({} if home is None else {"HOME": str(home)})},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.stdout.readline()
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


def skylark(*command: str) -> str:
    """What a command that ends prints."""
    words = [sys.executable, "-m", "skylark", "--log-level", "error", *command]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout


# ---- the folder of a release ---------------------------------------------------------------------


def client(namesrv: str) -> ClientOptions:
    """Options with a client id that stays the same: it names the folder of broadcast offsets."""
    return ClientOptions(namesrv=namesrv, client_ip="127.0.0.1", instance_name="golden")


def broadcast(options: ClientOptions, folder: Path) -> LitePullConsumer:
    return LitePullConsumer(
        ALL_GROUP, options, auto_commit=False, consume_from_where=FIRST,
        message_model=MessageModel.BROADCASTING, offset_folder=folder / "offsets",
    )  # fmt: skip


async def fill(namesrv: str, folder: Path) -> None:
    """Write messages of all kinds, consume some, and leave some for later."""
    options = client(namesrv)
    async with Admin(options) as admin:
        await admin.topics.create(TOPIC, queue_count=2)
        for topic in (LATER, FAILED, BATCHED, POPPED):
            await admin.topics.create(topic, queue_count=1)
        await admin.groups.create(GROUP)
    producer = Producer("golden-producer", options)

    @producer.transaction_checker
    async def check(message: MessageExt) -> None:
        return None

    async with producer:
        for number in range(COUNT):
            body = b"%d " % number + b"x" * (number % 7 * 100)
            tag = "even" if number % 2 == 0 else "odd"
            message = Message(TOPIC, body, tag=tag, keys=[f"k-{number}"], properties={"n": "1"})
            await producer.send(message)
        await producer.send(Message(LATER, b"timed"), delay=3)
        await producer.send(Message(LATER, b"level"), delay_level=2)
        async with producer.transaction(Message(LATER, b"committed")):
            pass
        async with producer.transaction(Message(LATER, b"rolled back")) as transaction:
            transaction.rollback()
        async with producer.transaction(Message(LATER, b"undecided")) as transaction:
            transaction.unknown()
        await producer.send_batch([Message(BATCHED, b"1"), Message(BATCHED, b"2")])
        await read_on(broadcast(options, folder), 2)
        await producer.send(Message(BATCHED, b"3"))
        for number in range(3):
            await producer.send(Message(POPPED, b"%d" % number))
        await producer.send(Message(FAILED, b"retry"))
        await producer.send(Message(FAILED, b"dead"))
    async with PopConsumer(POP_GROUP, options, consume_from_where=FIRST).subscribe(
        POPPED
    ) as popping:
        done, _ = await popping.receive(2, wait=30)  # the second stays popped, the third is not yet
        await done.ack()
    await fail(options)
    consumer = LitePullConsumer(GROUP, options, auto_commit=False, consume_from_where=FIRST)
    seen = 0
    async with consumer.subscribe(TOPIC):
        while seen < CONSUMED:
            batch = (await consumer.poll(30))[: CONSUMED - seen]
            assert batch
            seen += len(batch)
            await consumer.commit(batch)


async def read_on(consumer: LitePullConsumer, count: int) -> set[bytes]:
    """The next messages of the batches, and commit."""
    seen: set[bytes] = set()
    async with consumer.subscribe(BATCHED):
        while len(seen) < count:
            batch = await consumer.poll(30)
            assert batch, seen
            seen.update(message.body for message in batch)
        await consumer.commit()
    return seen


async def fail(options: ClientOptions) -> None:
    """One message becomes a dead letter; the other waits in the retry topic of its group."""
    consumer = PushConsumer(FAILING, options, consume_from_where=FIRST)
    taken = 0
    both = asyncio.Event()

    @consumer.subscribe(FAILED)
    async def take(message: MessageExt) -> None:
        nonlocal taken
        taken += 1
        if taken == 2:
            both.set()
        raise DeadLetter if message.body == b"dead" else RetryLater

    async with consumer, asyncio.timeout(60):
        await both.wait()
    async with Admin(options) as admin:
        for _ in range(120):
            stored = await admin.offsets.bounds(f"%RETRY%{FAILING}")
            if sum(queue.count for queue in stored.queues):
                return
            await asyncio.sleep(0.5)
    raise TimeoutError("nothing is in the retry topic")


def write_folder(target: Path, folder: Path) -> None:
    """Make the archive of the installed version."""
    settings = folder / "broker.conf"
    settings.write_text(SETTINGS_FILE)
    with up(folder) as namesrv:
        asyncio.run(fill(namesrv, folder))
    with up(folder) as namesrv, tempfile.TemporaryDirectory() as home:
        command = ("broker", "-c", str(settings), "-n", namesrv)
        with serving(*command, home=Path(home)) as ready:
            assert ready.startswith("ready settings="), ready
            skylark("cluster", "config", "set", *CHANGED, "-n", namesrv,
                    "--broker", "settings", "--yes")  # fmt: skip
    with tarfile.open(target, "w:xz") as archive:
        for name in ("data", "broker.conf", "offsets"):
            archive.add(
                folder / name, name, filter=lambda info: info if "up.l" not in info.name else None
            )


# ---- this version reads it -----------------------------------------------------------------------


def test_there_is_a_release() -> None:
    assert [path.name for path in RELEASES][:1] == ["skylark-0.1.0.tar.xz"]
    assert all(path.stat().st_size < 60_000 for path in RELEASES)


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_the_store_of_a_release_goes_on(release: Path, tmp_path: Path) -> None:
    with tarfile.open(release) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path
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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        write_folder(Path(sys.argv[1]), Path(temporary))
