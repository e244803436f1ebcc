"""Base of the blocking clients, and the decorators that make their methods from asyncio methods.

A blocking client holds an asyncio client (``_client``) and the thread of the private event loop
(:mod:`skylark.client.blocking.event_loop_thread`). Its methods are those of the asyncio client::

    class LitePullConsumer(BlockingPullClient[aio.LitePullConsumer]):
        seek = waiting(aio.LitePullConsumer.seek)          # a coroutine: wait for its end
        pause = calling(aio.LitePullConsumer.pause)        # a plain method, called on the loop
        assign = chaining(aio.LitePullConsumer.assign)     # the same, returns the blocking client

Name, parameters, types and docstring are those of the asyncio method, so the two cannot differ.
Only methods that take functions of the application are written out, because those functions run in
threads here.

``start`` and ``stop`` may be called from any thread and any number of times; ``start`` returns when
the client runs, even if another thread started it. A stopped client cannot start again. A client
may be made before a fork and started in the children.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, TypeVarTuple

from skylark.client.blocking.caller_errors import ABOUT_SERVERS, without_frames
from skylark.client.blocking.event_loop_thread import EventLoopThread, shared_loop_thread
from skylark.client.consumer.pull_consumer_base import PullClient
from skylark.client.core.argument_checks import check_function, suggests_keywords
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.service_state import ServiceState
from skylark.client.core.threads import SerialThread
from skylark.core.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
ClientT = TypeVar("ClientT")
ClientT_co = TypeVar("ClientT_co", covariant=True)


class LoopFacade(Generic[ClientT_co]):
    """An object of the asyncio interface, and the loop thread that runs its methods."""

    def __init__(self, client: ClientT_co, loop_thread: EventLoopThread | None = None) -> None:
        """``loop_thread``: None until the start, see :class:`Blocking`."""
        self._client = client
        self._started_on = loop_thread

    @property
    def _loop_thread(self) -> EventLoopThread:
        return self._started_on or shared_loop_thread()

    def _run(self, work: Coroutine[Any, Any, T], unused: Callable[[T], object] | None = None) -> T:
        """Run a coroutine and wait for it; ``unused`` as in EventLoopThread.call."""
        try:
            return self._loop_thread.call(work, unused)
        except ABOUT_SERVERS as error:
            raise without_frames(error) from error.__cause__

    def _do(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a plain method of the asyncio client: after the start, on its loop."""
        if self._started_on is None:
            return function(*args)
        return self._started_on.call_plain(function, *args)


FacadeT = TypeVar("FacadeT", bound=LoopFacade[Any])


def waiting(
    method: Callable[Concatenate[ClientT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[LoopFacade[ClientT], P], T]:
    """The blocking form of a coroutine method: waits for its end."""

    @functools.wraps(method)
    def call(facade: LoopFacade[ClientT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return facade._run(method(facade._client, *args, **kwargs))

    return call


def iterating(
    method: Callable[Concatenate[ClientT, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[LoopFacade[ClientT], P], Iterator[T]]:
    """The blocking form of an asynchronous generator: an iterator; closing it ends the work."""

    @functools.wraps(method)
    def call(facade: LoopFacade[ClientT], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return facade._loop_thread.iterate(method(facade._client, *args, **kwargs))

    return call


def calling(
    method: Callable[Concatenate[ClientT, P], T],
) -> Callable[Concatenate[LoopFacade[ClientT], P], T]:
    """The blocking form of a plain method: called on the loop once the client was started."""

    @functools.wraps(method)
    def call(facade: LoopFacade[ClientT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return facade._do(functools.partial(method, facade._client, *args, **kwargs))

    return call


def chaining(
    method: Callable[Concatenate[ClientT, P], ClientT],
) -> Callable[Concatenate[FacadeT, P], FacadeT]:
    """The blocking form of a plain method that returns its client: returns the blocking one."""

    @functools.wraps(method)
    def call(facade: FacadeT, /, *args: P.args, **kwargs: P.kwargs) -> FacadeT:
        facade._do(functools.partial(method, facade._client, *args, **kwargs))
        return facade

    return call


class AsyncClient(Protocol):
    """A producer, a consumer or an admin client of the asyncio interface."""

    @property
    def options(self) -> ClientOptions: ...

    @property
    def state(self) -> ServiceState: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class AsyncGroupClient(AsyncClient, Protocol):
    """A producer or a consumer of the asyncio interface."""

    @property
    def group(self) -> str: ...


AsyncClientT = TypeVar("AsyncClientT", bound=AsyncClient)
GroupClientT = TypeVar("GroupClientT", bound=AsyncGroupClient)
PullClientT = TypeVar("PullClientT", bound=PullClient)


class Blocking(LoopFacade[AsyncClientT]):
    """Start, stop and ``with`` of a blocking client; see the module docstring."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = suggests_keywords(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, client: AsyncClientT) -> None:
        if client.options.runtime is not None:
            # Its broker runs on the caller's loop, which a blocking call would block forever.
            raise ConfigError(
                "blocking clients cannot use a test broker in memory or on virtual time",
                hint="skylark.testing.sync_broker() runs one in a separate thread",
            )
        super().__init__(client)
        self._starting = threading.Lock()

    def __repr__(self) -> str:
        return f"<sync {repr(self._client).removeprefix('<')}"

    @property
    def options(self) -> ClientOptions:
        return self._client.options

    @property
    def state(self) -> ServiceState:
        """The state of the client: new, running, stopped."""
        return self._client.state

    def start(self) -> None:
        """Connect and start; does nothing if it runs already."""
        if self._started_on is None:
            self._started_on = shared_loop_thread()
        self._started_on.check()
        try:
            with self._starting:
                if self._client.state is not ServiceState.RUNNING:
                    self._started_on.call(self._client.start())
        except ABOUT_SERVERS as error:
            raise without_frames(error) from error.__cause__

    def stop(self) -> None:
        """Stop in order; does nothing if it has stopped."""
        self._run(self._client.stop())

    def __enter__(self) -> Self:
        try:
            self.start()
        except ABOUT_SERVERS as error:
            raise error.with_traceback(None) from error.__cause__
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class BlockingClient(Blocking[GroupClientT]):
    """A producer or a consumer."""

    @property
    def group(self) -> str:
        return self._client.group


class BlockingConsumer(BlockingClient[GroupClientT]):
    """A consumer, with the thread in which its listeners are called, one at a time."""

    def __init__(self, client: GroupClientT) -> None:
        super().__init__(client)
        self._listeners = SerialThread(f"{client.group}-listener")

    def _in_thread(self, listener: Callable[P, object]) -> Callable[P, None]:
        """A listener that does not block the event loop: it is called in the thread, in order."""
        check_function("listener", listener)

        def post(*args: P.args, **kwargs: P.kwargs) -> None:
            self._listeners.post(functools.partial(listener, *args, **kwargs))

        return post

    def stop(self) -> None:
        """Save the committed offsets and leave the group; does nothing if it has stopped."""
        super().stop()
        self._listeners.close()


class BlockingPullClient(BlockingConsumer[PullClientT]):
    """A pull consumer, with its requests about queues."""

    fetch_queues = waiting(PullClient.fetch_queues)
    min_offset = waiting(PullClient.min_offset)
    max_offset = waiting(PullClient.max_offset)
    offset_for_time = waiting(PullClient.offset_for_time)
