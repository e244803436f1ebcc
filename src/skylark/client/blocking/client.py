"""What the blocking clients have in common: an asyncio twin, and their start and end.

``start`` and ``stop`` may be called from any thread and any number of times; ``start`` returns when
the client runs, whoever started it. A client that was stopped cannot start again. Until its start a
client belongs to no process: it may be made before a fork and started in the children.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, TypeVarTuple

from skylark.client.blocking.portal import Portal, shared_portal
from skylark.client.options import ClientOptions
from skylark.client.state import ServiceState

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Twin(Protocol):
    """Something with an asyncio life: a client, or the functions of administration."""

    @property
    def options(self) -> ClientOptions: ...

    @property
    def state(self) -> ServiceState: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class GroupTwin(Twin, Protocol):
    """An asyncio client."""

    @property
    def group(self) -> str: ...


TwinT = TypeVar("TwinT", bound=Twin)
GroupTwinT = TypeVar("GroupTwinT", bound=GroupTwin)


class Blocking(Generic[TwinT]):
    """See the module."""

    def __init__(self, twin: TwinT) -> None:
        self._twin = twin
        self._portal: Portal | None = None  # since the start
        self._starting = threading.Lock()

    def __repr__(self) -> str:
        return f"<sync {repr(self._twin).removeprefix('<')}"

    @property
    def options(self) -> ClientOptions:
        return self._twin.options

    @property
    def state(self) -> ServiceState:
        """Where it stands in its life."""
        return self._twin.state

    def start(self) -> None:
        """Connect and begin; does nothing if it runs already."""
        if self._portal is None:
            self._portal = shared_portal()
        self._portal.check()
        with self._starting:
            if self._twin.state is not ServiceState.RUNNING:
                self._portal.call(self._twin.start())

    def stop(self) -> None:
        """End in order; does nothing if it has ended."""
        self._door.call(self._twin.stop())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _door(self) -> Portal:
        return self._portal or shared_portal()


class BlockingClient(Blocking[GroupTwinT]):
    """A producer or a consumer."""

    @property
    def group(self) -> str:
        return self._twin.group

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do what an asynchronous method does, and wait for it."""
        return self._door.call(work)

    def _do(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a method of the twin that does not wait: after the start, on its loop."""
        if self._portal is None:
            return function(*args)
        return self._portal.call_plain(function, *args)
