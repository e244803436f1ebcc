"""The revive when something fails: nothing is lost, and it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from skylark.broker.delay.timer_service import TimerService
from skylark.core.errors import StoreError
from skylark.core.names import REVIVE_GROUP
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.pop_records import CheckPoint
from tests.unit.broker.pop.pop_client import PopClient, fill, popping
from tests.unit.broker.pop.test_revive_runner import RETRY, pop_again, revive_of


async def test_unreadable_messages_survive_a_put_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets a check-point of its own; those that are not stored are written later."""
    async with popping(tmp_path) as client:
        bodies = await fill(client, 3)
        await client.pop()
        copies = revive_of(client).copies
        place, put_run = copies._log_offset, copies._writer.put_run
        failed: list[int] = []
        refused: list[int] = []

        def failing(point: CheckPoint, offset: int) -> int | None:
            if len(failed) < 12:
                failed.append(offset)
                raise StoreError("not now")
            return place(point, offset)

        def refusing(drafts: Sequence[Draft]) -> list[PutResult]:
            """Of the first three check-points that are put off, store the first only."""
            if failed and len(refused) < 2:
                stored = put_run(drafts[:1]) if not refused else []
                missing = len(drafts) - len(stored)
                refused.extend([1] * max(1, missing))
                return [*stored, *([PutResult(PutStatus.SERVICE_NOT_AVAILABLE)] * missing)]
            return put_run(drafts)

        monkeypatch.setattr(copies, "_log_offset", failing)
        monkeypatch.setattr(copies._writer, "put_run", refusing)
        await client.world.clock.advance(200)
        assert refused
        assert sorted(each.body for each in client.world.records(RETRY)) == bodies
        assert copies.lost_count == 0


async def test_the_revive_goes_on_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with popping(tmp_path) as client:
        bodies = await fill(client, 2)
        await client.pop()
        runner = revive_of(client)
        copy = runner.copies.copy
        errors: list[int] = []

        def failing(*args: object, **options: object) -> object:
            if not errors:
                errors.append(1)
                raise ValueError("nobody has thought of this")
            return copy(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(runner.copies, "copy", failing)
        await client.world.clock.advance(30)
        assert errors
        assert "nobody has thought of this" in caplog.text
        assert [each.body for each in await pop_again(client)] == bodies


async def test_a_cut_while_check_points_wait_copies_each_once(tmp_path: Path) -> None:
    async with popping(tmp_path, reviveQueueNum="1") as client:
        bodies = await fill(client, 2)
        await client.pop(invisibleTime=10_000)
        await client.world.clock.advance(10)  # the check-point is read, and not due
        queue = revive_of(client).queues[0]
        assert (len(queue), queue.read_offset) == (1, 1)
        queue.read_offset = 500  # as if the queue had been longer
        revive_of(client).wake()
        await client.world.clock.advance(60)
        assert [each.body for each in client.world.records(RETRY)] == bodies


async def test_a_queue_that_cannot_be_read_does_not_take_the_others_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was popped before the error would be invisible, and in no answer."""
    async with popping(tmp_path, 4) as client:
        for queue_id in range(4):
            await fill(client, 1, queue_id)
        reader = client.world.features.store.reader
        get = reader.get

        def failing(topic: str, queue_id: int, *args: object, **options: object) -> object:
            if queue_id == 2:
                raise StoreError("a bad disk")
            return get(topic, queue_id, *args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(reader, "get", failing)
        found: list[int] = []
        client_of_all = PopClient(client.world)
        for _ in range(20):
            answer = await client_of_all.answer()
            found += [each.record.queue_id for each in client_of_all.popped(answer)]
            if answer.code == 1:
                break
        assert sorted(found) == [0, 1, 3]
        assert answer.code == 1
        assert "store getMessage return null" in (answer.remark or "")


async def test_a_store_that_takes_no_messages_is_tried_again_after_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with popping(tmp_path, 8) as client:
        for queue_id in range(8):
            await fill(client, 32, queue_id)
        while await client.pop():
            pass
        runner = revive_of(client)
        put_run, turns = runner.copies._writer.put_run, []
        take_turn = runner._take_turn

        def counted() -> bool:
            turns.append(1)
            return take_turn()

        def refusing(drafts: Sequence[Draft]) -> list[PutResult]:
            if drafts[0].topic == RETRY:
                return [PutResult(PutStatus.SERVICE_NOT_AVAILABLE)] * len(drafts)
            return put_run(drafts)

        await client.world.clock.advance(11)
        monkeypatch.setattr(runner, "_take_turn", counted)
        monkeypatch.setattr(runner.copies._writer, "put_run", refusing)
        await client.world.clock.advance(20)
        assert 10 < len(turns) < 40
        monkeypatch.setattr(runner.copies._writer, "put_run", put_run)
        await client.world.clock.advance(5)
        assert len(client.world.records(RETRY)) == 8 * 32


async def test_an_offset_behind_the_end_repeats_once_and_a_timer_that_starts_over_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is read again; the timer finds in the log what it has delivered."""
    async with popping(tmp_path, reviveQueueNum="1") as client:
        (body,) = await fill(client, 1)
        with monkeypatch.context() as context:
            context.setattr(TimerService, "_is_on_disk", lambda _timer, _snapshot: False)
            await client.pop()
            await client.world.clock.advance(20)
            topic = revive_of(client).topic
            assert [each.body for each in client.world.records(RETRY)] == [body]
            client.world.features.groups.offsets.commit(REVIVE_GROUP, topic, 0, 1_000)
            await client.world.broker.stop()
    async with popping(tmp_path, reviveQueueNum="1") as client:
        await client.world.clock.advance(60)
        tags = [each.properties["TAGS"] for each in client.world.records(topic)]
        assert tags == ["ck"]
        assert [each.body for each in client.world.records(RETRY)] == [body, body]
