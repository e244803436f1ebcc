"""The folder that a released version leaves: makes it, and serves it.

``tests/golden/data/skylark-VERSION.tar.xz`` has what ``skylark up`` of that version, its clients
and its pipelines have written:

================================== ================================================================
``data``                           the folder of a stopped ``skylark up`` with one broker and small
                                   files
``broker.conf``                    a settings file that a broker has changed
``offsets``                        the folder of the offsets of a broadcasting consumer
``pipeline.yaml``, ``checkpoints`` a pipeline that copies a topic exactly once, and how far it is
================================== ================================================================

To add that of a new release, run this with the released version installed, and Spark::

    python -m tests.support.release_folder tests/golden/data/skylark-0.2.0.tar.xz
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

from skylark import (
    ClientOptions,
    ConsumeFromWhere,
    DeadLetter,
    Message,
    MessageExt,
    MessageModel,
    RetryLater,
)
from skylark.aio import Admin, LitePullConsumer, PopConsumer, Producer, PushConsumer

DATA: Final = Path(__file__).parents[1] / "golden" / "data"
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
PIPELINE: Final = """\
name: golden
cluster: {nameServer: "${SKYLARK_NAMESRV}"}
checkpoints: checkpoints
spark: {master: "local[2]"}
pipelines:
  - name: copy
    source: {format: rocketmq, options: {topic: Golden, startingOffsets: earliest}}
    sql: SELECT body FROM input
    sink: {format: rocketmq, options: {topic: GoldenCopy, delivery: exactly-once}}
"""
COPY: Final = "GoldenCopy"
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


def skylark(*command: str, **environ: str) -> str:
    """What a command that ends prints."""
    words = [sys.executable, "-m", "skylark", "--log-level", "error", *command]
    done = subprocess.run(
        words, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True, timeout=240,
        check=True,
    )  # fmt: skip
    return done.stdout


def unpacked(release: Path, folder: Path) -> Path:
    """The folder of a release, copied."""
    with tarfile.open(release) as archive:
        archive.extractall(folder, filter="data")
    return folder


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
        for topic in (LATER, FAILED, BATCHED, POPPED, COPY):
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
    await fail(options)
    consumer = LitePullConsumer(GROUP, options, auto_commit=False, consume_from_where=FIRST)
    seen = 0
    async with consumer.subscribe(TOPIC):
        while seen < CONSUMED:
            batch = (await consumer.poll(30))[: CONSUMED - seen]
            assert batch
            seen += len(batch)
            await consumer.commit(batch)


async def pop(namesrv: str) -> None:
    """Three messages: one done, one popped and not acknowledged, one not popped."""
    consumer = PopConsumer(POP_GROUP, client(namesrv), consume_from_where=FIRST, invisible=30)
    async with consumer.subscribe(POPPED):
        done, _ = await consumer.receive(2, wait=30)
        await done.ack()


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
        pipeline = folder / "pipeline.yaml"
        pipeline.write_text(PIPELINE)
        skylark("pipeline", "run", str(pipeline), "--available-now", SKYLARK_NAMESRV=namesrv)
        asyncio.run(pop(namesrv))  # last, so that its time is not over before the broker stops
    with up(folder) as namesrv, tempfile.TemporaryDirectory() as home:
        command = ("broker", "-c", str(settings), "-n", namesrv)
        with serving(*command, home=Path(home)) as ready:
            assert ready.startswith("ready settings="), ready
            skylark("cluster", "config", "set", *CHANGED, "-n", namesrv,
                    "--broker", "settings", "--yes")  # fmt: skip
    with tarfile.open(target, "w:xz") as archive:
        for name in ("data", "broker.conf", "offsets", "pipeline.yaml", "checkpoints"):
            archive.add(
                folder / name, name, filter=lambda info: info if "up.l" not in info.name else None
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        write_folder(Path(sys.argv[1]), Path(temporary))
