"""Work of the revive in one turn of the loop: bounded by number, by size and by time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylark.broker.pop import retry_copies, revive_runner
from skylark.broker.pop.retry_copies import Outcome
from skylark.broker.pop.revive_runner import (
    COPIED_BYTES_PER_TURN,
    COPIES_PER_TURN,
    COPYING_S,
    READ_PER_TURN,
    READING_S,
)
from skylark.broker.pop.revive_turn import Turn
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult
from skylark.testing.virtual_clock import VirtualClock
from tests.unit.broker.pop.pop_client import PopClient, popping
from tests.unit.broker.pop.test_revive_runner import RETRY, revive_of


class Work(msgspec.Struct):
    """What one turn has done."""

    read: int = 0
    copied: int = 0
    copied_bytes: int = 0
    #: Time that it took by the clock of the runner.
    seconds: float = 0.0


class Meter:
    """Measures the turns of a runner; each record that is read, and each copy, takes some time."""

    def __init__(
        self, client: PopClient, monkeypatch: pytest.MonkeyPatch, *, each_s: float = 0.0
    ) -> None:
        self.turns: list[Work] = [Work()]
        runner, clock = revive_of(client), client.world.clock
        writer = runner.copies._writer
        take_turn, put_run = runner._take_turn, writer.put_run
        read_record = retry_copies.record_at

        def counted_turn() -> bool:
            self.turns.append(Work())
            return take_turn()

        def counted_put(drafts: Sequence[Draft]) -> list[PutResult]:
            if drafts[0].topic == RETRY:
                work = self.turns[-1]
                work.copied += len(drafts)
                work.copied_bytes += sum(len(draft.body) for draft in drafts)
            return put_run(drafts)

        def counted_read(*args: object) -> object:
            self.turns[-1].read += 1
            self.turns[-1].seconds += each_s
            return read_record(*args)  # type: ignore[arg-type]

        def slow_read(*args: object) -> object:
            self.turns[-1].seconds += each_s
            return read_record(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(runner, "_take_turn", counted_turn)
        monkeypatch.setattr(writer, "put_run", counted_put)
        monkeypatch.setattr(revive_runner, "record_at", counted_read)
        monkeypatch.setattr(retry_copies, "record_at", slow_read)
        monkeypatch.setattr(runner, "_clock", SlowClock(clock, self))

    @property
    def seconds(self) -> float:
        return self.turns[-1].seconds

    def most(self, field: str) -> float:
        return max(float(getattr(work, field)) for work in self.turns)


class SlowClock:
    """The clock of a runner whose turns take time."""

    def __init__(self, clock: VirtualClock, meter: Meter) -> None:
        self._clock = clock
        self._meter = meter

    def monotonic(self) -> float:
        return self._clock.monotonic() + self._meter.seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


async def expire(client: PopClient, count: int, body: bytes = b"x", batch: int = 32) -> None:
    """Let the messages of a topic of eight queues expire, all in one second."""
    writer = client.world.features.puts.writer
    for number in range(count):
        draft = Draft("T", number % 8, body, f"UNIQ_KEY\x01{number}\x02".encode())
        assert writer.put(draft).status.stored
    popped = 0
    while messages := await client.pop(maxMsgNums=batch):
        popped += len(messages)
    assert popped == count
    await client.world.clock.advance(20)
    assert len(client.world.records(RETRY)) == count
    assert client.world.features.pop.state.in_flight("T", "g", 0) == 0


async def test_ten_thousand_messages_expire_in_bounded_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with popping(tmp_path, 8) as client:
        meter = Meter(client, monkeypatch)
        await expire(client, 10_000)
        assert 0 < meter.most("copied") <= COPIES_PER_TURN
        assert meter.most("read") <= READ_PER_TURN


async def test_many_revive_queues_share_what_a_turn_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with popping(tmp_path, 8, reviveQueueNum="64") as client:
        meter = Meter(client, monkeypatch)
        await expire(client, 1_000, batch=1)
        assert 0 < meter.most("read") <= READ_PER_TURN
        assert meter.most("copied") <= COPIES_PER_TURN


async def test_large_messages_are_copied_a_few_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = COPIED_BYTES_PER_TURN // 4
    async with popping(tmp_path, 8) as client:
        meter = Meter(client, monkeypatch)
        await expire(client, 16, b"x" * size)
        assert 0 < meter.most("copied_bytes") <= COPIED_BYTES_PER_TURN + size


@pytest.mark.parametrize("each_s", [0.001, 1.0])
async def test_a_slow_machine_does_less_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each_s: float
) -> None:
    async with popping(tmp_path, 8) as client:
        meter = Meter(client, monkeypatch, each_s=each_s)
        await expire(client, 400)
        turns = meter.turns[1:]
        assert max(work.seconds for work in turns) <= READING_S + COPYING_S + 2 * each_s
        assert max(work.copied for work in turns) <= max(1, COPYING_S / each_s)


async def test_a_check_point_that_is_copied_in_parts_is_whole_after_a_crash(
    tmp_path: Path,
) -> None:
    """The files that are written in between name the copies that are made."""
    async with popping(tmp_path, reviveQueueNum="1") as client:
        writer = client.world.features.puts.writer
        for number in range(5):
            draft = Draft("T", 0, b"%d" % number, f"UNIQ_KEY\x01{number}\x02".encode())
            assert writer.put(draft).status.stored
        await client.pop()
        runner = revive_of(client)
        client.world.features.topics.table.ensure(RETRY, queue_count=1)
        client.world.context.live.update("reviveInterval=1000000", 0)
        runner.wake()
        await client.world.clock.advance(20)
        queue = runner.queues[0]
        runner._read_some(queue, Turn(client.world.clock, count=9, bytes_max=1, seconds=1))
        waiting = runner._due(queue)
        assert waiting is not None
        turn = Turn(client.world.clock, count=2, bytes_max=1_000, seconds=1)
        assert runner._revive(queue, waiting, turn) is Outcome.UNFINISHED
        copies = [record.log_offset for record in client.world.records(RETRY)]
        assert len(copies) in (1, 2)
        assert client.world.features.pop.state.copies_left() == copies
        while runner._take_turn():
            pass
        assert [each.body for each in client.world.records(RETRY)] == [
            b"%d" % number for number in range(5)
        ]
        assert client.world.features.pop.state.copies_left() == []
