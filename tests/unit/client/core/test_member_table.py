"""When consumers divide the queues anew."""

from __future__ import annotations

from pathlib import Path

from tests.unit.client.worlds import FakeConsumer, world


async def test_consumers_rebalance_often_until_they_are_balanced(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add_name_server()
        async with w.client() as instance:
            consumer = FakeConsumer("g")
            consumer.balanced = False
            await instance.register_consumer(consumer)
            instance.rebalance_soon()
            await w.clock.drain()
            assert consumer.rebalances == 1
            instance.rebalance_soon()
            await w.clock.advance(seconds=0.9)
            assert consumer.rebalances == 1  # never twice within a second
            await w.clock.advance(seconds=2.2)
            assert consumer.rebalances == 4
            consumer.balanced = True
            await w.clock.advance(seconds=1)
            assert consumer.rebalances == 5
            await w.clock.advance(seconds=19)
            assert consumer.rebalances == 5
            await w.clock.advance(seconds=2)
            assert consumer.rebalances == 6
