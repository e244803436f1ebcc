"""A broker for tests without asyncio: it runs on its own thread and listens on loopback.

::

    with skylark.testing.sync_broker() as b:
        with skylark.sync.Producer("g", b.options) as producer:
            producer.send(Message(b.topic(), b"hello"))

It is a :mod:`skylark.testing.local_broker` on free ports and real time; clients in any process of
this machine can use it. All methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from skylark.client.core.client_options import ClientOptions
from skylark.net.event_loop import new_event_loop
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.local_broker import LocalBroker, Setting, broker

T = TypeVar("T")

THREAD_NAME: Final = "skylark-test-broker"


class ThreadBroker:
    """The object that :func:`sync_broker` yields; do not create it yourself."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        self._settings = settings
        self._started: Future[LocalBroker] = Future()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name=THREAD_NAME, daemon=True)
        self._loop = new_event_loop()
        self._stop = asyncio.Event()
        self._namesrv = ""

    @property
    def namesrv(self) -> str:
        """The address of the name server, for all clients."""
        return self._namesrv

    @property
    def options(self) -> ClientOptions:
        """What our clients need to find this broker."""
        return self._local.options

    def topic(self, prefix: str = "topic", *, queue_count: int = 4) -> str:
        """Create a topic with a new name; returns the name."""
        return self._run(self._local.topic(prefix, queue_count=queue_count))

    def group(self, prefix: str = "group") -> str:
        """Create a consumer group with a new name; returns the name."""
        return self._run(self._local.group(prefix))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, if it exists."""
        self._run(self._local.delete_topic(name))

    def delete_group(self, name: str) -> None:
        """Delete a group with its offsets, retries and dead letters, if it exists."""
        self._run(self._local.delete_group(name))

    @property
    def faults(self) -> FaultPlan | None:
        """The faults of requests and responses; see ``LocalBroker.faults``."""
        return self._local.faults

    @faults.setter
    def faults(self, plan: FaultPlan | None) -> None:
        async def change() -> None:
            self._local.faults = plan

        self._run(change())

    @property
    def _local(self) -> LocalBroker:
        return self._started.result(0)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # ---- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it and wait until it serves; raises the error of its start."""
        self._thread.start()
        self._namesrv = self._started.result().namesrv

    def stop(self) -> None:
        """Stop it and wait for its thread; raises the error of its stop."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._live())
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                self._failure = error
        if not self._started.done():
            self._started.set_exception(self._failure or RuntimeError("the broker ended early"))

    async def _live(self) -> None:
        async with broker(self._settings, transport="loopback") as local:
            self._started.set_result(local)
            await self._stop.wait()


@contextmanager
def sync_broker(
    settings: Mapping[str, Setting] | None = None, **more_settings: Setting
) -> Iterator[ThreadBroker]:
    """A broker with its name server, for a ``with`` block; settings have their Java names.

    Raises ConfigError for settings that do not exist, and all errors of the start of a broker.
    """
    made = ThreadBroker({**(settings or {}), **more_settings})
    made.start()
    try:
        yield made
    finally:
        made.stop()
