"""The lag of groups that pop: what is in flight is not consumed yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.broker.stats.consumer_lag import Lag
from tests.unit.broker.pop.pop_client import PopClient, fill, popping


def lags(client: PopClient) -> dict[bool, tuple[int, int, int]]:
    """Lag, in flight and ready of the group; True: of its retries."""
    report = client.world.features.stats.lags
    for _ in report.renew():
        pass
    found: list[Lag] = [each for each in report.lags if (each.group, each.topic) == ("g", "T")]
    return {
        each.is_retry: (each.lag_count, each.inflight_count, each.ready_count) for each in found
    }


@pytest.mark.parametrize("order", ["false", "true"])
@pytest.mark.parametrize("merge", ["false", "true"])
async def test_messages_in_flight_are_behind(tmp_path: Path, merge: str, order: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 5)
        messages = await client.pop(order=order, maxMsgNums=3)
        assert lags(client) == {False: (5, 3, 2)}
        await client.ack_all(messages[:1])
        assert lags(client) == {False: (4, 2, 2)}
        await client.ack_all(messages[1:])
        assert lags(client) == {False: (2, 0, 2)}


async def test_the_oldest_message_in_flight_decides_on_the_latency(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        for _ in range(3):
            await fill(client, 1)
            await client.world.clock.advance(1)
        await client.pop(maxMsgNums=2)
        report = client.world.features.stats.lags
        for _ in report.renew():
            pass
        (lag,) = (each for each in report.lags if each.topic == "T")
        assert (lag.lag_ms, lag.queueing_ms) == (3_000, 1_000)


async def test_retries_have_a_row_of_their_own(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 3)
        await client.pop()
        await client.world.clock.advance(20)
        assert lags(client) == {False: (0, 0, 0), True: (3, 0, 3)}
        (message,) = await client.pop(maxMsgNums=1)
        assert lags(client) == {False: (0, 0, 0), True: (3, 1, 2)}
        await client.ack_all([message])
        assert lags(client) == {False: (0, 0, 0), True: (2, 0, 2)}
