"""A master and its slave on loopback, with a name server; each can be stopped and started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.client.core.client_options import ClientOptions
from skylark.core.clock import LoopClock
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.net.client import RemotingClient
from skylark.net.transport import PortInUseError, TcpNetwork
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.message import iter_records
from tests.unit.broker.stored import texts

LIMIT_S = 20.0
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}


async def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait until something holds, looking again and again."""
    async with LoopClock().timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.01)


class Pair:
    """Both brokers, and a client of either."""

    def __init__(self, root: Path, name_server: NameServer, settings: dict[str, str]) -> None:
        self.root = root
        self.name_server = name_server
        self._settings = settings
        self._brokers: dict[str, Broker] = {}
        self._ports: dict[str, int] = {}
        self.client = RemotingClient(TcpNetwork(), LoopClock())

    @property
    def master(self) -> Broker:
        return self._brokers["master"]

    @property
    def slave(self) -> Broker:
        return self._brokers["slave"]

    @property
    def namesrv(self) -> str:
        return str(self.name_server.address)

    @property
    def options(self) -> ClientOptions:
        """Of clients that notice soon who is gone."""
        return ClientOptions(
            namesrv=self.namesrv, route_interval=0.2, heartbeat_interval=0.2, offset_interval=0.2
        )

    async def start_master(self, **given: str) -> None:
        await self._start("master", given)

    async def start_slave(self, **given: str) -> None:
        """Also waits until it follows the master that runs."""
        await self._start("slave", {**SLAVE, **given})

    async def _start(self, name: str, given: dict[str, str]) -> None:
        settings = {
            "brokerName": "broker-a",
            "brokerIP1": "127.0.0.1",
            "namesrvAddr": self.namesrv,
            "slaveSyncInterval": "100",
            "listenPort": str(self._ports.get(name, 0)),
            **self._settings,
            **given,
        }
        broker = await self._started(name, settings)
        self._brokers[name] = broker
        self._ports[name] = broker.address.port
        await until(lambda: self.namesrv in broker.features.registration.states)
        await until(lambda: broker.features.registration.states[self.namesrv])

    async def _started(self, name: str, settings: dict[str, str]) -> Broker:
        """A broker that serves; between two starts, a client of another test may have its port."""
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while True:
            broker = Broker(load_broker_config(texts(self.root / name, **settings)))
            try:
                await broker.start()
            except PortInUseError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.02)
            else:
                return broker

    async def stop(self, name: str) -> None:
        broker = self._brokers.pop(name, None)
        if broker is not None:
            await broker.stop()

    async def close(self) -> None:
        await self.client.close()
        for name in list(self._brokers):
            await self.stop(name)

    # ---- asking ----------------------------------------------------------------------------------

    async def call(self, broker: Broker, code: int, ext: dict[str, str] | None = None) -> Command:
        return await self.client.call(str(broker.address), Command(code=code, ext=ext), LIMIT_S)

    async def send(self, body: bytes, *, to: Broker | None = None, properties: str = "") -> Command:
        ext = {
            "a": "pg", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0",
            "i": properties,
        }  # fmt: skip
        request = Command(code=RequestCode.SEND_MESSAGE_V2, ext=ext, body=body)
        return await self.client.call(str((to or self.master).address), request, LIMIT_S)

    async def pull(self, broker: Broker, offset: int = 0, *, sys_flag: int = 4) -> Command:
        ext = {
            "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": str(offset),
            "maxMsgNums": "32", "sysFlag": str(sys_flag), "commitOffset": "0",
            "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "0",
        }  # fmt: skip
        return await self.call(broker, RequestCode.PULL_MESSAGE, ext)

    async def commit(self, broker: Broker, offset: int) -> int:
        ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": str(offset)}
        return (await self.call(broker, RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code

    def committed(self, broker: Broker) -> int:
        return broker.features.groups.offsets.get("g", "T", 0)

    # ---- waiting ---------------------------------------------------------------------------------

    async def followed(self) -> None:
        """The slave has the whole log, its views, and a fresh copy of the tables."""
        master, slave = self.master.features, self.slave.features
        assert slave.slave is not None
        await until(lambda: slave.store.log.max_offset == master.store.log.max_offset)
        await until(
            lambda: slave.store.dispatch.dispatched_until == master.store.log.files.wrote_end
        )
        await self.copied()

    async def copied(self) -> None:
        """A whole copy of the tables was begun and ended from now on."""
        assert self.slave.features.slave.sync is not None
        sync = self.slave.features.slave.sync
        count = sync.copy_count
        await until(lambda: sync.copy_count >= count + 2)

    def same_logs(self) -> bool:
        return log_bytes(self.master) == log_bytes(self.slave)


def log_bytes(broker: Broker) -> bytes:
    """The whole log of a broker."""
    files = broker.features.store.log.files
    with broker.features.store.log.files.last.lease(0, files.last.wrote) as lease:
        return bytes(lease.view)


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in iter_records(answer.body or b"")]


@asynccontextmanager
async def pair(root: Path, **settings: str) -> AsyncIterator[Pair]:
    """A name server and nothing else yet; ``settings`` are for both brokers."""
    name_server = NameServer(NamesrvConfig(listen_port=0, kv_config_path=root / "kv.json"))
    await name_server.start()
    place = Pair(root, name_server, settings)
    try:
        yield place
    finally:
        await place.close()
        await name_server.stop()
