"""A running name server and a raw connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from skylark.namesrv.app import NameServer
from tests.support.namesrv_peers import RawPeer, raw_peer, serving


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    async with serving() as running:
        yield running


@pytest.fixture
async def peer(server: NameServer) -> AsyncIterator[RawPeer]:
    async with raw_peer(server.address) as connected:
        yield connected
