"""The process that is killed: puts messages into a store as fast as it can, until it dies.

Started by :mod:`tests.support.store_kills`, which explains what it writes to its standard output
and to the page of notes. With the transient pool a message counts as acknowledged when it can be
read, because that is all the setting promises.
"""

from __future__ import annotations

import logging
import mmap
import os
import random
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from bench.owner import Owner
from skylark.store.commit_log import Draft
from skylark.store.config import StoreConfig
from skylark.store.message_store import MessageStore
from skylark.store.reput import Arrival
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.batch import Batch, BatchMessage
from tests.support.store_kills import (
    ACKNOWLEDGEMENT,
    OWNER_PHASES,
    QUEUES,
    STATUS_SIZE,
    WORKERS,
    Mode,
    body_of,
    properties_of,
)
from tests.support.store_machine import HOST, SMALL, Queue

T = TypeVar("T")

IDLE, PUT, BATCH, ROLL, TURN = range(len(OWNER_PHASES))
UNANSWERED_MAX = 500


class NotedWorker(ThreadPoolExecutor):
    """A worker that notes on the page whether it is busy."""

    def __init__(self, page: mmap.mmap, name: str) -> None:
        super().__init__(1)
        self._page = page
        self._place = 1 + WORKERS.index(name)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        def noted() -> T:
            self._page[self._place] = 1
            try:
                return fn(*args, **kwargs)
            finally:
                self._page[self._place] = 0

        return super().submit(noted)


class Child:
    """One life."""

    def __init__(self, root: Path, status: Path, seed: int, mode: Mode) -> None:
        self.rng = random.Random(seed)
        self.mode = mode
        self.owner = Owner()
        with status.open("r+b") as file:
            self.page = mmap.mmap(file.fileno(), STATUS_SIZE)
        self.pieces: list[bytes] = []
        self.unanswered = 0
        self.store = MessageStore(
            StoreConfig(store_path_root_dir=root, **{**SMALL, **mode.settings}),
            store_host=HOST,
            scheduler=self.owner,
            post=self.owner.post,
            on_arrival=self.arrived if mode.pooled else None,
            make_worker=self.make_worker,
        )

    def make_worker(self, name: str) -> Executor:
        return NotedWorker(self.page, name)

    def run(self) -> None:
        """Never returns."""
        self.store.open()
        self.store.start()
        files = self.store.log.files
        roll = files.roll

        def noted_roll(offset: int = 0) -> Any:
            phase, self.page[0] = self.page[0], ROLL
            try:
                return roll(offset)
            finally:
                self.page[0] = phase

        files.roll = noted_roll  # type: ignore[method-assign]
        while True:
            if self.unanswered < UNANSWERED_MAX:
                for _ in range(self.rng.randint(1, 40)):
                    self.put_something()
            self.page[0] = TURN
            self.owner.turn()
            self.page[0] = IDLE
            os.write(sys.stdout.fileno(), b"".join(self.pieces))
            self.pieces.clear()

    def put_something(self) -> None:
        queue = self.rng.choice(QUEUES)
        found = self.store.queues.get(*queue)
        offset = 0 if found is None else found.next_offset
        if self.rng.random() < 0.2:
            count = self.rng.randint(2, 10)
            batch = Batch.of(
                BatchMessage(body_of(queue, it), properties_of(queue, it))
                for it in range(offset, offset + count)
            )
            self.page[0] = BATCH
            result = self.store.put_batch(Draft(*queue, b"", born_host=HOST), batch)
        else:
            draft = Draft(
                *queue, body_of(queue, offset), properties_of(queue, offset), born_host=HOST
            )
            self.page[0] = PUT
            result = self.store.put(draft)
        self.page[0] = IDLE
        if result.status is not PutStatus.PUT_OK:
            raise SystemExit(f"a put failed: {result}")
        self.unanswered += 1
        self.store.when_durable(result, lambda status: self.answered(queue, result, status))

    def answered(self, queue: Queue, result: PutResult, status: PutStatus) -> None:
        self.unanswered -= 1
        if status is PutStatus.PUT_OK and not self.mode.pooled:
            self.acknowledge(queue, result.queue_offset, result.message_count)

    def arrived(self, arrival: Arrival) -> None:
        self.acknowledge((arrival.topic, arrival.queue_id), arrival.next_offset - 1, 1)

    def acknowledge(self, queue: Queue, queue_offset: int, count: int) -> None:
        self.pieces.append(ACKNOWLEDGEMENT.pack(QUEUES.index(queue), queue_offset, count))


if __name__ == "__main__":
    _, root_, status_, seed_, synchronous_, pooled_ = sys.argv
    logging.getLogger("skylark").setLevel(logging.ERROR)
    mode_ = Mode(bool(int(synchronous_)), bool(int(pooled_)))
    Child(Path(root_), Path(status_), int(seed_), mode_).run()
