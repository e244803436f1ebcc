"""A local broker for tests: a name server and a broker in the process of the test, on its loop.

::

    async with skylark.testing.broker(autoCreateTopicEnable=False) as b:
        topic = await b.topic()
        async with b.producer() as producer, b.consumer() as consumer: ...

It runs the code of ``skylark up``, with the same defaults, on small files in a temporary folder
that is deleted at the end. Settings have their Java names, as keywords or in a mapping.

==================  ==============================================================================
``transport``       ``"memory"``: no sockets. Only clients with ``b.options`` reach the broker;
                    ``b.namesrv`` is a name that does not resolve, so that no other client connects
                    to some server of this machine. ``"loopback"``: free ports of 127.0.0.1, for
                    all clients.
``clock``           ``"virtual"``: time stands still until ``await b.clock.advance(hours=2)``, which
                    runs everything that becomes due, in order: delayed messages, retries, checks of
                    transactions, retention. Clients with ``b.options`` share the clock.
==================  ==============================================================================

On virtual time the broker saves its tables on the loop instead of in threads, which the clock could
not see. Syncs of the log stay on their thread; only senders with ``flushDiskType=SYNC_FLUSH`` wait
for them, and must await their result before they advance the clock.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar, Unpack

from skylark.admin.admin_client import Admin
from skylark.admin.errors import NotFoundError
from skylark.broker.app import Broker
from skylark.broker.config import BrokerConfig, load_broker_config
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.consumer.push.push_settings import PushKeywords
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.client_runtime import inline_runtime
from skylark.client.producer.producer import Producer
from skylark.client.producer.producer_settings import ProducerKeywords
from skylark.core.clock import LoopClock
from skylark.core.config import format_value, tls_problem, unknown_keys
from skylark.core.errors import ConfigError
from skylark.launch.launch_plan import DECIDED, FRIENDLY
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.net.transport import Network, TcpNetwork
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.memory_net import MEMORY_HOST, MemoryNetwork
from skylark.testing.request_faults import RequestFaults
from skylark.testing.virtual_clock import VirtualClock

T = TypeVar("T")

Setting: TypeAlias = str | int | float | bool
Transport: TypeAlias = Literal["memory", "loopback"]
ClockKind: TypeAlias = Literal["real", "virtual"]

LOOPBACK: Final = "127.0.0.1"
SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": str(3_000 * 20),
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
}
#: A temporary store need not be synced every second of virtual time: fewer timers.
SELDOM_SYNCED: Final = {
    "flushIntervalCommitLog": "60000",
    "flushIntervalConsumeQueue": "60000",
}
_DECIDED: Final = {*DECIDED, "brokerIP1"} - {"brokerName"}


class LocalBroker:
    """The object that :func:`broker` yields; do not create it yourself."""

    name_server: NameServer
    broker: Broker  #: for tests of its internals
    admin: Admin  #: administration of this broker, already started

    def __init__(self, clock: VirtualClock | None, network: Network, folder: Path) -> None:
        self.folder = folder  #: holds the store and all that goes with it
        self.network = network
        self._in_memory = isinstance(network, MemoryNetwork)
        self._virtual = clock
        self._clock = clock or LoopClock()
        self._faults: FaultPlan | None = None
        self._exit = AsyncExitStack()

    # ---- for tests -------------------------------------------------------------------------------

    @property
    def clock(self) -> VirtualClock:
        """The clock that the test moves; raises ConfigError on real time."""
        if self._virtual is None:
            raise ConfigError(
                "this broker runs on real time", hint='skylark.testing.broker(clock="virtual")'
            )
        return self._virtual

    @property
    def namesrv(self) -> str:
        """The address of the name server; on the memory transport, only for ``options``."""
        port = self.name_server.address.port
        return f"{MEMORY_HOST if self._in_memory else LOOPBACK}:{port}"

    @property
    def options(self) -> ClientOptions:
        """What clients need to find this broker; for any number of them."""
        runtime = None
        if self._virtual is not None or self._in_memory:
            runtime = inline_runtime(self.network, self._clock, delays_first_pull=False)
        return ClientOptions(namesrv=self.namesrv, client_ip=LOOPBACK, runtime=runtime)

    async def topic(self, prefix: str = "topic", *, queue_count: int = 4) -> str:
        """Create a topic with a new name; returns the name."""
        name = _fresh(prefix)
        await self.admin.topics.create(name, queue_count=queue_count)
        return name

    async def group(self, prefix: str = "group") -> str:
        """Create a consumer group with a new name; returns the name."""
        name = _fresh(prefix)
        await self.admin.groups.create(name)
        return name

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, if it exists."""
        await _unless_gone(self.admin.topics.delete(name))

    async def delete_group(self, name: str) -> None:
        """Delete a group with its offsets, retries and dead letters, if it exists."""
        await _unless_gone(self.admin.groups.delete(name))

    def producer(self, group: str = "producers", **settings: Unpack[ProducerKeywords]) -> Producer:
        """A producer for ``async with``."""
        return Producer(group, self.options, **settings)

    def consumer(self, group: str | None = None, **settings: Unpack[PushKeywords]) -> PushConsumer:
        """A push consumer for ``async with``, in a new group unless one is given.

        Broadcasting consumers keep their offsets in the temporary folder.
        """
        settings.setdefault("offset_folder", self.folder / "offsets")
        return PushConsumer(group or _fresh("group"), self.options, **settings)

    @property
    def faults(self) -> FaultPlan | None:
        """The faults of requests and responses: ``MessageFaults``, or any plan with the points of
        :mod:`skylark.testing.request_faults`. None: no faults."""
        return self._faults

    @faults.setter
    def faults(self, plan: FaultPlan | None) -> None:
        self._faults = plan
        for server in self.broker.features.endpoint.servers:
            dispatcher = server.dispatcher
            others = [it for it in dispatcher.interceptors if not isinstance(it, RequestFaults)]
            if plan is not None:
                others.insert(0, RequestFaults(plan, dispatcher, self._clock))
            dispatcher.interceptors = tuple(others)

    # ---- life ------------------------------------------------------------------------------------

    async def start(self, texts: Mapping[str, str]) -> None:
        await self._start_name_server(
            NamesrvConfig(
                listen_port=0,
                kv_config_path=self.folder / "namesrv" / "kvConfig.json",
            )
        )
        given = {
            **FRIENDLY,
            **SMALL_FILES,
            **(SELDOM_SYNCED if self._virtual is not None else {}),
            **texts,
            "bindAddress": LOOPBACK,
            "brokerIP1": LOOPBACK,
            "listenPort": "0",
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(self.folder / "store"),
        }
        await self._start_broker(given)
        runtime = inline_runtime(self.network, self._clock)
        self.admin = Admin(self.options, runtime=runtime)
        await self.admin.start()
        self._exit.push_async_callback(self._in_time, self.admin.stop)

    async def _start_name_server(self, config: NamesrvConfig) -> None:
        server = self.name_server = NameServer(config, network=self.network, clock=self._clock)
        await server.start()
        self._exit.push_async_callback(self._in_time, server.stop)
        if self._virtual is not None:
            self._exit.callback(self._virtual.on_advance(server.clock_advanced))

    async def _start_broker(self, given: Mapping[str, str]) -> None:
        config = load_broker_config(given)
        in_thread = asyncio.to_thread if self._virtual is None else _in_place
        broker = self.broker = Broker(
            config, network=self.network, clock=self._clock, in_thread=in_thread, given=given
        )
        await broker.start()
        self._exit.push_async_callback(self._in_time, broker.stop)
        await broker.features.registration.announced()
        if self._virtual is not None:
            self._exit.callback(self._virtual.on_advance(broker.clock_advanced))
            store = broker.features.store  # a thread syncs its log, in real time
            self._exit.callback(self._virtual.hold_while(lambda: store.disk_wait_count > 0))

    async def stop(self) -> None:
        await self._exit.aclose()

    async def _in_time(self, stop: Callable[[], Awaitable[None]]) -> None:
        """Stop a part; on virtual time, advances the clock as far as needed."""
        if self._virtual is None:
            await stop()
        else:
            await self._virtual.finish(stop())


@asynccontextmanager
async def broker(
    settings: Mapping[str, Setting] | None = None,
    *,
    transport: Transport = "memory",
    clock: ClockKind | VirtualClock = "real",
    faults: FaultPlan | None = None,
    **more_settings: Setting,
) -> AsyncIterator[LocalBroker]:
    """A broker with its name server, for an ``async with`` block; see the module.

    Raises ConfigError for settings that do not exist, and all errors of the start of a broker.
    """
    texts = _texts({**(settings or {}), **more_settings})
    if clock not in ("real", "virtual") and not isinstance(clock, VirtualClock):
        raise ConfigError(f'clock is "real", "virtual" or a VirtualClock, not {clock!r}')
    virtual = VirtualClock() if clock == "virtual" else None
    if isinstance(clock, VirtualClock):
        virtual = clock
    network: Network
    if transport == "memory":
        network = MemoryNetwork(clock=virtual)
    elif transport == "loopback":
        network = TcpNetwork()
    else:
        raise ConfigError(f'transport is "memory" or "loopback", not {transport!r}')
    folder = Path(tempfile.mkdtemp(prefix="skylark-test-"))
    local = LocalBroker(virtual, network, folder)
    try:
        await local.start(texts)
        if faults is not None:
            local.faults = faults
        yield local
    finally:
        try:
            await local.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _texts(settings: Mapping[str, Setting]) -> dict[str, str]:
    """Settings as texts, as in a properties file; raises ConfigError for unknown names."""
    for key in settings:
        if key in _DECIDED:
            raise ConfigError(f"{key}: a broker for tests determines this setting itself")
    texts = {key: format_value(value) or "" for key, value in settings.items()}
    for key, close in unknown_keys(BrokerConfig, texts).items():
        if (problem := tls_problem(key, texts[key])) is not None:
            raise ConfigError(problem)
        known = "`skylark broker -p` prints all"
        hint = known if close is None else f"did you mean {close}? {known}"
        raise ConfigError(f"{key}: there is no such setting", hint=hint)
    return texts


def _fresh(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


async def _unless_gone(work: Awaitable[object]) -> None:
    try:
        await work
    except NotFoundError:
        return


async def _in_place(function: Callable[..., None], /, *args: Any) -> None:
    function(*args)
