"""A machine's clock that is set: producers and pull consumers go on as if nothing had happened.

Time limits and intervals are measured by the monotonic clock. Only what is a time of day by its
meaning follows the jump: the birth of a message, and the part of its unique id that is one.
``consumer/test_push_failures.py`` has the same for push consumers.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark.core.errors import SendTimeoutError
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.heartbeat import ConsumeFromWhere
from tests.unit.client.consumer.pull_world import bodies, pull_world
from tests.unit.client.producer_world import MESSAGE, letters, scripted, stored

HOUR_MS = 3_600_000


class JumpingClock(VirtualClock):
    """A virtual clock whose time of day can be set."""

    jump_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.jump_ms


@pytest.fixture(autouse=True)
def _jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.client.worlds.VirtualClock", JumpingClock)


def jump(clock: VirtualClock, hours: int) -> None:
    assert isinstance(clock, JumpingClock)
    clock.jump_ms += hours * HOUR_MS


@pytest.mark.parametrize("hours", [-3, 3])
async def test_a_send_keeps_its_time_and_its_id(tmp_path: Path, hours: int) -> None:
    async with scripted(tmp_path, batching=False) as script:
        first = await script.world.finish(script.producer.send(MESSAGE))
        script.answer(None)
        waiting = await script.later(script.producer.send(MESSAGE, timeout=2))
        jump(script.clock, hours)
        await script.clock.advance(seconds=1.9)
        assert not waiting.done()
        await script.clock.advance(seconds=0.2)
        with pytest.raises(SendTimeoutError):
            await waiting
        script.answer(stored())
        last = await script.world.finish(script.producer.send(MESSAGE))
        assert first.msg_id != last.msg_id
        born = [int(letters(request)["g"]) for request in script.sent()]
        assert round((max(born) - min(born)) / HOUR_MS) == abs(hours)


@pytest.mark.parametrize("hours", [-3, 3])
async def test_what_lingers_for_company_goes_when_it_is_due(tmp_path: Path, hours: int) -> None:
    async with scripted(tmp_path, linger=1.0) as script:
        waiting = [
            await script.later(script.producer.send(MESSAGE)),
            await script.later(script.producer.send(MESSAGE)),
        ]
        jump(script.clock, hours)
        await script.clock.advance(seconds=0.9)
        assert script.sent() == []
        await script.clock.advance(seconds=0.2)
        results = await asyncio.gather(*waiting)
        assert len({result.msg_id for result in results}) == 2
        assert len(script.sent()) == 1


@pytest.mark.parametrize("hours", [-3, 3])
async def test_a_lite_pull_consumer_repeats_nothing(tmp_path: Path, hours: int) -> None:
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    async with pull_world(tmp_path) as w, w.lite(consume_from_where=first) as consumer:
        await w.send(b"0", b"1")
        await w.finish(consumer.subscribe("T").start())
        assert bodies(await w.finish(consumer.poll(5))) == [b"0", b"1"]
        jump(w.clock, hours)
        queues = consumer.assignment
        for _ in range(12):  # rebalances and automatic commits come and go
            assert await w.finish(consumer.poll(5)) == []
        assert consumer.assignment == queues
        assert await w.committed("g") == 2
        await w.send(b"2")
        assert bodies(await w.finish(consumer.poll(5))) == [b"2"]
