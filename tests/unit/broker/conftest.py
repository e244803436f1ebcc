"""A running broker without a store, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.broker.world import Peer, World, running


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running() as started:
        yield started


@pytest.fixture
async def peer(world: World) -> Peer:
    return world.peer()
