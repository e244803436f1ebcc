"""When a broker is ready, and how long name servers that do not answer are waited for."""

from __future__ import annotations

import asyncio

import pytest

from skylark.testing.virtual_clock import VirtualClock
from tests.unit.broker.topics.test_registration import DEAD, World, listener, registered


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


async def test_a_silent_name_server_holds_up_nobody_for_long(clock: VirtualClock) -> None:
    """It accepts connections and never answers, beside one that does."""
    async with listener(clock) as silent, listener(clock) as quick:
        silent.gate.clear()
        world = World(clock, f"{silent.address};{quick.address}")
        registration = world.registration
        await registration.start()
        is_ready = [registration.is_ready]
        await registration.ready()  # one has answered, and no time has passed
        assert [*is_ready, registration.is_ready] == [False, True]
        assert registration.states == {silent.address: None, quick.address: True}
        world.create("T")
        first = asyncio.create_task(registration.announced())
        await clock.advance(2.9)
        assert not first.done()
        await clock.advance(0.1)
        assert first.done()
        world.create("U")
        await registration.announced()  # it has had its time
        assert quick.topics(2) == ["U"]
        silent.gate.set()
        await registration.stop()
        await world.client.close()


@pytest.mark.parametrize("silent", [True, False])
async def test_a_broker_is_ready_after_a_while_without_name_servers(
    clock: VirtualClock, silent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with listener(clock) as fake:
        fake.gate.clear()
        address = fake.address if silent else DEAD
        world = World(clock, address)
        registration = world.registration
        await registration.start()
        ready = asyncio.create_task(registration.ready())
        await clock.advance(2.9)
        seen = [(ready.done(), registration.is_ready)]
        await clock.advance(0.1)
        seen.append((ready.done(), registration.is_ready))
        assert seen == [(False, False), (True, True)]
        text = (
            f"no name server has answered for 3 s, clients find no route to this broker: {address}"
        )
        assert caplog.messages.count(text) == 1
        await clock.advance(10)
        assert caplog.messages.count(text) == 1
        fake.gate.set()
        await registration.stop()
        await world.client.close()


async def test_a_broker_that_has_no_name_servers_is_ready_at_once(clock: VirtualClock) -> None:
    async with registered(clock, "") as world:
        assert world.registration.is_ready
        await world.registration.ready()
