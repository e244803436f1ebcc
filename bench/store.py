"""The message store against its floors: append, read, flush, recovery, growth.

``make bench PART=store``; ``ROWS='100 B*'`` picks rows, ``ARGS="--only recovery"`` one of the parts
that are not rows of cases (``cases``, ``sync``, ``recovery``, ``growth``), and smaller sizes than
those of the goals: ``--sync-rounds``, ``--recovery-bytes``, ``--messages``, ``--window``.
``BASE=<commit>`` compares the rows of cases with those of another commit. Stores are made in a
temporary folder on the disk of the checkout and removed at the end; the largest takes about 4 GB.

Each floor is the least that Python can do for the same input, and its code stands here.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.harness import Case, main
from bench.owner import Owner
from skylark.store.commit_log import Draft
from skylark.store.config import FlushDiskType, StoreConfig
from skylark.store.file_system import FileHandle
from skylark.store.files import OsFileSystem
from skylark.store.message_store import MessageStore
from skylark.store.owner_thread import share_interpreter
from skylark.store.store_results import PutStatus
from skylark.wire.batch import Batch, BatchMessage
from skylark.wire.layout import MAGIC_V1, PROPERTIES_LENGTH, RECORD_HEADS
from skylark.wire.message import pack_host

TOPIC = "BenchmarkTest"
HOST = pack_host("127.0.0.1", 10911)
NOW_MS = 1_700_000_000_123
PUTS = 4096
BATCH = 32
QUEUES = 4
GETS = PUTS // QUEUES // 32


def properties_of(number: int) -> bytes:
    """As a producer sends them: a key, a unique id whose counter moves on, a tag."""
    return (
        b"KEYS\x01order-%d\x02UNIQ_KEY\x017F0000010A2B18B4AAC2%012X\x02WAIT\x01true\x02"
        b"TAGS\x01TagA\x02" % (number * 7919, number)
    )


PROPERTIES = tuple(properties_of(number) for number in range(PUTS))


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """On the disk of the checkout: a folder in memory would not show what a disk costs."""
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-store-") as name:
        yield Path(name)


def config(root: Path, **settings: object) -> StoreConfig:
    return StoreConfig(store_path_root_dir=root, **settings)  # type: ignore[arg-type]


def open_store(root: Path, owner: Owner, **settings: object) -> MessageStore:
    store = MessageStore(
        config(root, **settings),
        store_host=HOST,
        scheduler=owner,
        post=owner.post,
        watch=owner.watch,
    )
    store.open()
    store.start()
    return store


def draft(body: bytes, number: int) -> Draft:
    return Draft(TOPIC, number % QUEUES, body, PROPERTIES[number % PUTS], 0, 0, NOW_MS, HOST)


# ---- append and read ----------------------------------------------------------------------------


class FreshPages:
    """Mapped files like those of a log, one after the other, so that every page is a new one."""

    def __init__(self, folder: Path, name: str) -> None:
        self._paths = (folder / f"{name}-{number}" for number in itertools.count())
        self.size = config(folder).mapped_file_size_commit_log
        self._used: list[FileHandle] = []  # to unmap one would be measured with the next run

    def next_buffer(self) -> memoryview:
        handle = OsFileSystem().create_file(next(self._paths), self.size)
        handle.allocate(0, self.size)
        self._used.append(handle)
        return handle.buffer


def bare_append(folder: Path, body: bytes, *, fresh: bool = True) -> Callable[[], object]:
    """The floor of a put: the fixed head and the copies, all values at hand, nothing computed.

    It goes on through a mapped file with blocks of its own as the log does. The first touch of a
    page is the system's work and costs both the same; a floor that wrote to the same warm pages
    again and again would charge it to the put alone. What it costs is the difference to the row
    that does so (``fresh=False``): most of the floor on a machine that has not used its memory yet.
    """
    pack_into, head_size = RECORD_HEADS[0].pack_into, RECORD_HEADS[0].size
    topic = bytes([len(TOPIC)]) + TOPIC.encode()
    tails = [topic + PROPERTIES_LENGTH.pack(len(tail)) + tail for tail in PROPERTIES]
    pages = FreshPages(folder, f"floor-{len(body)}-{fresh}")
    run_size = sum(head_size + len(body) + len(tail) for tail in tails)
    body_size = len(body)
    buffer, position = pages.next_buffer(), 0

    def run() -> None:
        nonlocal buffer, position
        if not fresh:
            position = 0
        elif position + run_size > pages.size:
            buffer, position = pages.next_buffer(), 0
        here, start = buffer, position
        for tail in tails:
            body_end = start + head_size + body_size
            end = body_end + len(tail)
            pack_into(
                here, start, end - start, MAGIC_V1, 7, 1, 0, 17, start, 0, NOW_MS, HOST,
                NOW_MS, HOST, 0, 0, body_size,
            )  # fmt: skip
            here[start + head_size : body_end] = body
            here[body_end:end] = tail
            start = end
        position = start

    return run


def put(store: MessageStore, owner: Owner, body: bytes) -> Callable[[], object]:
    """Puts of drafts that are there: making them of a request is the work of its handler."""
    drafts = [draft(body, number) for number in range(PUTS)]
    put_ok = PutStatus.PUT_OK

    def run() -> None:
        put_one = store.put
        for each in drafts:
            result = put_one(each)
            assert result.status is put_ok
        owner.turn()

    return run


def put_batches(store: MessageStore, owner: Owner, body: bytes) -> Callable[[], object]:
    batches = [
        Batch.of([BatchMessage(body, PROPERTIES[first + index]) for index in range(BATCH)])
        for first in range(0, PUTS, BATCH)
    ]

    def run() -> None:
        for number, batch in enumerate(batches):
            result = store.put_batch(draft(b"", number), batch)
            assert result.message_count == BATCH
        owner.turn()

    return run


def unpack_once() -> Callable[[], object]:
    head = RECORD_HEADS[0]
    buffer = bytes(head.size)

    def run() -> None:
        for _ in range(PUTS):
            head.unpack_from(buffer, 0)

    return run


def get_32(store: MessageStore) -> Callable[[], object]:
    reader = store.reader

    def run() -> None:
        for offset in range(0, GETS * 32, 32):
            result = reader.get(TOPIC, 0, offset, 32)
            assert result.message_count == 32
            result.release()

    return run


def cases(folder: Path) -> tuple[list[Case], list[MessageStore]]:
    owner = Owner()
    stores, rows = [], []
    for label, body in (("100 B", bytes(range(100))), ("1 KB", bytes(range(256)) * 4)):
        floor = f"{label} bare pack_into"
        plain = open_store(folder / f"plain-{len(body)}", owner, message_index_enable=False)
        indexed = open_store(folder / f"indexed-{len(body)}", owner)
        batched = open_store(folder / f"batched-{len(body)}", owner, message_index_enable=False)
        stores += [plain, indexed, batched]
        rows += [
            Case(floor, bare_append(folder, body), PUTS, "message"),
            Case(
                f"{label} the same, warm pages",
                bare_append(folder, body, fresh=False),
                PUTS,
                "message",
                floor,
            ),
            Case(f"{label} put", put(plain, owner, body), PUTS, "message", floor, 6.0),
            Case(f"{label} put, index", put(indexed, owner, body), PUTS, "message", floor, 15.0),
            Case(
                f"{label} batch of 32",
                put_batches(batched, owner, body),
                PUTS,
                "message",
                floor,
                8.0,
            ),
        ]
    reading = open_store(folder / "reading", owner, message_index_enable=False)
    stores.append(reading)
    put(reading, owner, bytes(100))()
    rows += [
        Case("unpack_from", unpack_once(), PUTS, "call"),
        Case("get of 32", get_32(reading), GETS, "get", "unpack_from", 200.0),
    ]
    return rows, stores


# ---- SYNC_FLUSH ---------------------------------------------------------------------------------


def sending_rate(folder: Path, flush: FlushDiskType, senders: int, seconds: float) -> float:
    """Messages per second with so many senders, each waiting for its own message."""
    owner = Owner()
    store = open_store(folder, owner, flush_disk_type=flush)
    done = 0
    deadline = owner.monotonic() + seconds

    def send(number: int) -> None:
        result = store.put(draft(bytes(100), number))
        store.when_durable(result, lambda status: answered(status, number))

    def answered(status: PutStatus, number: int) -> None:
        nonlocal done
        assert status is PutStatus.PUT_OK
        done += 1
        if owner.monotonic() < deadline:
            owner.post(lambda: send(number))

    began = owner.monotonic()
    for number in range(senders):
        send(number)
    owner.turn_until(lambda: owner.monotonic() >= deadline)
    took = owner.monotonic() - began
    rate = done / took
    owner.turn_until(lambda: store._flush is not None and store._flush.waiting_count == 0)
    store.close()
    return rate


def bare_sync_rate(folder: Path, seconds: float) -> float:
    """The floor: one fdatasync for each message, in a file that grows with it."""
    path = folder / "floor"
    with path.open("wb", buffering=0) as file:
        record = bytes(300)
        began = time.monotonic()
        count = 0
        while time.monotonic() < began + seconds:
            file.write(record)
            os.fdatasync(file.fileno())
            count += 1
        return count / (time.monotonic() - began)


def met(reached: bool) -> str:
    return "met" if reached else "MISSED"


def run_sync(folder: Path, rounds_count: int) -> None:
    share_interpreter()  # as every broker does
    rounds = []
    for number in range(rounds_count):
        root = folder / f"sync-{number}"
        root.mkdir(parents=True)
        rounds.append(
            (
                bare_sync_rate(root, 1.0),
                sending_rate(root / "one", FlushDiskType.SYNC_FLUSH, 1, 1.0),
                sending_rate(root / "many", FlushDiskType.SYNC_FLUSH, 64, 2.0),
                sending_rate(root / "async", FlushDiskType.ASYNC_FLUSH, 64, 2.0),
            )
        )
    bare, one, many, asynchronous = (
        statistics.median(column) for column in zip(*rounds, strict=True)
    )
    goal = min(20 * bare, 0.7 * asynchronous)
    print(f"fdatasync per message        {bare:12,.0f} messages/s")
    print(f"SYNC_FLUSH, 1 sender         {one:12,.0f} messages/s")
    print(
        f"SYNC_FLUSH, 64 senders       {many:12,.0f} messages/s  {many / bare:.1f}x of one "
        f"fdatasync per message, {many / asynchronous:.2f}x of ASYNC_FLUSH"
    )
    print(f"ASYNC_FLUSH, 64 senders      {asynchronous:12,.0f} messages/s")
    print(f"goal: the smaller of 20x and 0.7x of ASYNC_FLUSH: {met(many >= goal)}")


# ---- recovery -----------------------------------------------------------------------------------

FILL = """
import sys
from pathlib import Path
from bench.store import fill_and_wait
fill_and_wait(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
"""


def fill_and_wait(root: Path, body_size: int, size: int) -> None:
    """In a child: fill a store, say so, and wait to be killed."""
    owner = Owner()
    store = open_store(root, owner)
    body = bytes(body_size)
    number = 0
    while store.log.max_offset < size:
        for _ in range(256):
            store.put(draft(body, number))
            number += 1
        owner.turn()
    print("filled", number, flush=True)
    sys.stdin.read()


def run_recovery(folder: Path, size: int) -> None:
    """A store that was killed, its pages still in memory; how long the next start takes."""
    for label, body_size, goal in (("100 B", 100, 50e6), ("1 KB", 1024, 200e6)):
        root = folder / f"killed-{body_size}"
        arguments = [sys.executable, "-c", FILL, str(root), str(body_size), str(size)]
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            filled = child.stdout.readline()
            child.send_signal(signal.SIGKILL)
            child.wait()
        # The checkpoint may vouch for most of it; without one everything is scanned.
        (root / "checkpoint").unlink(missing_ok=True)
        owner = Owner()
        store = MessageStore(config(root), store_host=HOST, scheduler=owner, post=owner.post)
        began = time.perf_counter()
        report = store.open()
        took = time.perf_counter() - began
        store.close()
        rate = report.scanned_bytes / took
        print(
            f"recovery, {label}: {report.scanned_records:,} of {filled.split()[1]} records, "
            f"{report.scanned_bytes / 1e6:,.0f} MB in {took:.2f} s = {rate / 1e6:,.0f} MB/s, index "
            f"{'later' if report.index_behind_from is not None else 'included'}: goal "
            f"{goal / 1e6:.0f} MB/s {met(rate >= goal)}"
        )


# ---- growth -------------------------------------------------------------------------------------


FLAT = 1.2  # how much more a message may cost at the far end


class Growth:
    """A store that grows; messages are numbered through, so that no key comes twice."""

    def __init__(self, root: Path) -> None:
        self._owner = Owner()
        self.store = open_store(root, self._owner)
        self.count = 0

    def make_queues(self, queues: int) -> float:
        """Begin so many queues, files included; the CPU time of each, in nanoseconds.

        A directory and a file for each is what the format asks for, once in the life of a queue.
        """
        self.grow(PUTS, queues)
        began = time.process_time()
        self.store.queues.flush()
        return (time.process_time() - began) / queues * 1e9

    def grow(self, count: int, queues: int = QUEUES) -> float:
        """Put so many messages; the CPU time of each, in nanoseconds.

        Of the whole process, so that writing and syncing the views is part of it. That happens
        once in a while: a window shows its share if it is long enough to have some rounds of it.
        """
        body = bytes(100)
        put_one = self.store.put
        spent = 0.0
        turns = -(-count // PUTS)
        for _ in range(turns):
            numbers = range(self.count, self.count + PUTS)
            drafts = [
                Draft(TOPIC, number % queues, body, properties_of(number), 0, 0, NOW_MS, HOST)
                for number in numbers
            ]
            began = time.process_time()
            for each in drafts:
                put_one(each)
            self._owner.turn()
            spent += time.process_time() - began
            self.count += PUTS
        return spent / max(1, turns * PUTS) * 1e9


def run_growth(folder: Path, messages_max: int, window: int) -> None:
    """The cost of a put when there are few and many messages, and few and many queues."""
    growth = Growth(folder / "growth")
    by_count = []
    for target in (10**5, 10**6, 10**7):
        if target <= messages_max:
            growth.grow(target - window - growth.count)
            by_count.append((f"{target:,} messages", growth.grow(target - growth.count)))
    by_queues = []
    for queues in (1, 10, 100, 1000):
        made = growth.make_queues(queues)
        by_queues.append((f"{queues:,} queues", growth.grow(window, queues)))
    for rows in (by_count, by_queues):
        floor = rows[0][1]
        for label, cost in rows:
            print(f"put, {label:<21} {cost:8,.0f} ns   {cost / floor:.2f}x")
        is_flat = max(cost for _, cost in rows) <= FLAT * floor
        print(f"goal: within {FLAT}x of the first: {met(is_flat)}")
    print(f"directory and file of a new queue {made:8,.0f} ns")
    growth.store.close()


def run() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", choices=["cases", "sync", "recovery", "growth"])
    parser.add_argument("--sync-rounds", type=int, default=5)
    parser.add_argument("--recovery-bytes", type=int, default=1 << 30)
    parser.add_argument("--messages", type=int, default=10**7, help="to which the store grows")
    parser.add_argument("--window", type=int, default=5 * 10**5, help="messages measured at a time")
    options, rest = parser.parse_known_args()
    with temporary_folder() as folder:
        if options.only in (None, "cases"):
            rows, stores = cases(folder)
            sys.argv[1:] = rest
            main("store", rows, base_arguments=("--only", "cases"))
            for store in stores:
                store.close()
        if options.only in (None, "sync"):
            run_sync(folder, options.sync_rounds)
        if options.only in (None, "recovery"):
            run_recovery(folder, options.recovery_bytes)
        if options.only in (None, "growth"):
            run_growth(folder, options.messages, options.window)


if __name__ == "__main__":
    run()
