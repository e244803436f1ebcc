"""Stores and configurations that released versions have written open with this one.

``data/skylark-VERSION.tar.xz`` is the folder of a stopped ``skylark up --data``: one broker with
small files, its name server, and the settings it had. ``write_folder`` below has made it; to add
that of a new release, run this file with the released version installed::

    python -m tests.golden.test_versions tests/golden/data/skylark-0.2.0.tar.xz

A test copies the folder, starts this version on it, and reads everything; nothing may be missing,
and the settings, groups, offsets, delayed and transactional messages go on.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from skylark import ClientOptions, ConsumeFromWhere, Message, MessageExt
from skylark.aio import Admin, LitePullConsumer, Producer, PushConsumer

DATA: Final = Path(__file__).parent / "data"
RELEASES: Final = sorted(DATA.glob("skylark-*.tar.xz"))
SETTINGS: Final = (
    "mappedFileSizeCommitLog=262144", "mappedFileSizeConsumeQueue=6000", "maxHashSlotNum=100",
    "maxIndexNum=400", "mappedFileSizeTimerLog=1048576", "maxMessageSize=65536",
    "fileReservedTime=1000000",
)  # fmt: skip
TOPIC, GROUP, COUNT, CONSUMED = "Golden", "golden-group", 100, 60
LATER: Final = "GoldenLater"
FIRST: Final = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@contextmanager
def up(folder: Path, *settings: str) -> Iterator[str]:
    """``skylark up`` on a folder; the address of its name server."""
    words = [word for setting in settings for word in ("--set", setting)]
    process = subprocess.Popen(
        [sys.executable, "-m", "skylark", "--log-level", "warning", "up", "--data", str(folder),
         "--namesrv-port", "0", "--broker-port", "0", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready namesrv="), line
        yield line.split()[1].removeprefix("namesrv=")
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


# ---- the folder of a release ---------------------------------------------------------------------


async def fill(namesrv: str) -> None:
    """Write messages of all kinds, consume some, and leave some for later."""
    options = ClientOptions(namesrv=namesrv)
    async with Admin(options) as admin:
        await admin.topics.create(TOPIC, queue_count=2)
        await admin.topics.create(LATER, queue_count=1)
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
    consumer = LitePullConsumer(GROUP, options, auto_commit=False, consume_from_where=FIRST)
    seen = 0
    async with consumer.subscribe(TOPIC):
        while seen < CONSUMED:
            batch = (await consumer.poll(30))[: CONSUMED - seen]
            assert batch
            seen += len(batch)
            await consumer.commit(batch)


def write_folder(target: Path, folder: Path) -> None:
    """Make the archive of the installed version."""
    with up(folder, *SETTINGS) as namesrv:
        asyncio.run(fill(namesrv))
    with tarfile.open(target, "w:xz") as archive:
        archive.add(folder, "data", filter=lambda info: info if "up.l" not in info.name else None)


# ---- this version reads it -----------------------------------------------------------------------


def test_there_is_a_release() -> None:
    assert [path.name for path in RELEASES][:1] == ["skylark-0.1.0.tar.xz"]
    assert all(path.stat().st_size < 60_000 for path in RELEASES)


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_the_store_of_a_release_goes_on(release: Path, tmp_path: Path) -> None:
    with tarfile.open(release) as archive:
        archive.extractall(tmp_path, filter="data")
    with up(tmp_path / "data", *SETTINGS) as namesrv:
        asyncio.run(read_all(namesrv))
        asyncio.run(go_on(namesrv))
    # What it has written reads as well, after a clean stop.
    with up(tmp_path / "data", *SETTINGS) as namesrv:
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
    """Delayed and committed messages come, and new ones can be stored."""
    options = ClientOptions(namesrv=namesrv)
    later: set[bytes] = set()
    done = asyncio.Event()
    consumer = PushConsumer("later-readers", options, consume_from_where=FIRST)

    @consumer.subscribe(LATER)
    async def take(message: MessageExt) -> None:
        later.add(message.body)
        if len(later) == 3:
            done.set()

    async with consumer, Producer("golden-producer", options) as producer:
        message = Message(TOPIC, b"%d" % COUNT, tag="even", keys=[f"k-{COUNT}"])
        await producer.send(message)
        async with asyncio.timeout(60):
            await done.wait()
    assert later == {b"timed", b"level", b"committed"}


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        write_folder(Path(sys.argv[1]), Path(temporary))
