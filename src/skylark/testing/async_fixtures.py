"""The asynchronous fixtures of the pytest plugin; loaded if pytest-asyncio or anyio is there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from skylark.testing.local_broker import LocalBroker


def _async_fixture(function: Callable[..., AsyncIterator[Any]]) -> Any:
    """A fixture for pytest-asyncio, in its strict mode too, or else for anyio."""
    try:
        import pytest_asyncio
    except ImportError:
        return pytest.fixture(function)
    return pytest_asyncio.fixture(function)


@_async_fixture
async def rocketmq_async(
    rocketmq_settings: Mapping[str, str | int | float | bool],
) -> AsyncIterator[LocalBroker]:
    """A broker for this test, on its event loop: see ``skylark.testing.broker``."""
    from skylark.testing.local_broker import broker

    async with broker(rocketmq_settings) as local:
        yield local


@_async_fixture
async def rocketmq_virtual(
    rocketmq_settings: Mapping[str, str | int | float | bool],
) -> AsyncIterator[LocalBroker]:
    """The same on virtual time: ``await rocketmq_virtual.clock.advance(hours=2)``."""
    from skylark.testing.local_broker import broker

    async with broker(rocketmq_settings, clock="virtual") as local:
        yield local
