"""What the blocking clients have in common: an asyncio twin, and their start and end.

``start`` and ``stop`` may be called from any thread and any number of times; ``start`` returns when
the client runs, whoever started it. A client that was stopped cannot start again. Until its start a
client belongs to no process: it may be made before a fork and started in the children.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, TypeVarTuple

from skylark.client.blocking.event_loop_thread import Portal, shared_portal
from skylark.client.consumer.pull_consumer_base import PullClient
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.service_state import ServiceState
from skylark.core.errors import ConfigError
from skylark.wire.bodies.common_body import MessageQueue

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
PullTwinT = TypeVar("PullTwinT", bound=PullClient)


class Blocking(Generic[TwinT]):
    """See the module."""

    def __init__(self, twin: TwinT) -> None:
        if twin.options.runtime is not None:
            # Its broker is on the caller's loop, which a blocking call would hold up for ever.
            raise ConfigError(
                "blocking clients cannot use a test broker in memory or on virtual time",
                hint="skylark.testing.sync_broker() runs one on a thread of its own",
            )
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

    def _run(self, work: Coroutine[Any, Any, T], unused: Callable[[T], object] | None = None) -> T:
        """Do what an asynchronous method does, and wait for it; ``unused`` as in Portal.call."""
        return self._door.call(work, unused)

    def _do(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a method of the twin that does not wait: after the start, on its loop."""
        if self._portal is None:
            return function(*args)
        return self._portal.call_plain(function, *args)


class BlockingPullClient(BlockingClient[PullTwinT]):
    """A pull consumer: questions about queues."""

    def fetch_queues(self, topic: str) -> frozenset[MessageQueue]:
        """All queues of a topic that can be read, as of now; raises NoRouteError."""
        return self._run(self._twin.fetch_queues(topic))

    def min_offset(self, queue: MessageQueue) -> int:
        """That of the oldest message still held."""
        return self._run(self._twin.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """That of the next message to come."""
        return self._run(self._twin.max_offset(queue))

    def offset_for_time(self, queue: MessageQueue, time: datetime | int) -> int:
        """The offset of the first message stored at or after a time (or milliseconds)."""
        return self._run(self._twin.offset_for_time(queue, time))
