"""A master and a slave, of ours or of Apache's in any combination, below a name server of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from skylark.broker.slave import master_requests
from skylark.client.consumer.pull_api import decode_messages
from skylark.client.core.broker_calls import BrokerCalls, PullStatus, checked, open_caller
from skylark.core.errors import SkylarkError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.ha_body import HARuntimeInfo
from skylark.wire.codes import PullSysFlag, RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from skylark.wire.headers.pull import PullMessageRequestHeader
from tests.interop.java import HOST, ApacheBroker
from tests.interop.ours import SkylarkBroker, SkylarkNamesrv
from tests.interop.process import poll_until

FILE_SIZE: Final = 256 << 10
#: Apache's slave takes up to 5 s until its first report, and 5 s more after a failure.
CAUGHT_UP_S: Final = 60.0
#: Apache's slave copies tables 10 s after its start, and then every minute.
COPIED_S: Final = 90.0

SETTINGS: Final = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "brokerIP1": HOST,
    "brokerIP2": HOST,
    "slaveReadEnable": "true",
    "inSyncReplicas": 2,
}
OUR_SETTINGS: Final = {"haSyncFromStart": "true", "slaveSyncInterval": 500}

Broker: TypeAlias = SkylarkBroker | ApacheBroker
T = TypeVar("T")


class Pair:
    """Two brokers of one name; the master waits for its slave (SYNC_MASTER)."""

    def __init__(
        self, namesrv: SkylarkNamesrv, folder: Path, *, our_master: bool, our_slave: bool
    ) -> None:
        self.namesrv = namesrv
        self.master = self._broker(folder / "master", our_master, "SYNC_MASTER", 0)
        self.slave = self._broker(folder / "slave", our_slave, "SLAVE", 1)

    def _broker(self, folder: Path, ours: bool, role: str, broker_id: int) -> Broker:
        settings = {**SETTINGS, "brokerRole": role, "brokerId": broker_id}
        address = self.namesrv.address
        if ours:
            return SkylarkBroker(address, {**settings, **OUR_SETTINGS}, folder=folder)
        return ApacheBroker(address, settings, folder=folder, heap_mb=384)

    def ask(self, broker: Broker, question: Callable[[master_requests.Ask], Awaitable[T]]) -> T:
        """The answer of a broker to a request of slaves."""

        async def run() -> T:
            async with open_caller() as caller:
                return await question(lambda request: caller.call(broker.address, request, 10.0))

        return asyncio.run(run())

    def common_end(self) -> int:
        """Where both logs end, as soon as the slave has acknowledged all that the master has."""

        async def look(ask: master_requests.Ask) -> HARuntimeInfo:
            answer = await ask(Command(code=RequestCode.GET_BROKER_HA_STATUS))
            return decode_body(HARuntimeInfo, checked(answer, self.master.address).body or b"{}")

        ends: list[int] = []

        def caught_up() -> bool:
            status = self.ask(self.master, look)
            ends[:] = [status.master_commit_log_max_offset]
            return ends == [each.slave_ack_offset for each in status.ha_connection_info]

        poll_until(caught_up, timeout_s=CAUGHT_UP_S, what="a slave that has everything")
        return ends[0]

    def messages(self, broker: Broker, queue: MessageQueue, start: int) -> dict[int, bytes]:
        """The bodies of a queue by offset, from one of them to the end."""

        async def read() -> dict[int, bytes]:
            found: dict[int, bytes] = {}
            async with open_caller() as caller:
                calls = BrokerCalls(caller)
                end = await calls.max_offset(broker.address, queue)
                while (offset := start + len(found)) < end:
                    header = _pull_of(queue, offset)
                    pulled = await calls.pull(broker.address, header, queue.broker_name, 10.0)
                    assert pulled.status is PullStatus.FOUND, (pulled.status, offset, end)
                    messages, error = decode_messages(pulled, queue)
                    assert error is None
                    found |= {each.queue_offset: each.body for each in messages}
            return found

        return asyncio.run(read())

    def min_offset(self, broker: Broker, queue: MessageQueue) -> int:
        """The first offset of a queue that a broker has."""

        async def look() -> int:
            async with open_caller() as caller:
                return await BrokerCalls(caller).min_offset(broker.address, queue)

        return asyncio.run(look())

    def tables(self, broker: Broker, topic: str, group: str) -> dict[str, Any]:
        """What a broker knows of a topic and a group, as far as slaves copy it."""

        async def look(ask: master_requests.Ask) -> dict[str, Any]:
            topics = await master_requests.get_topics(ask)
            groups = await master_requests.get_groups(ask)
            offsets = await master_requests.get_offsets(ask)
            return {
                "topic": topics.table.get(topic),
                "group": groups.table.get(group),
                "offsets": offsets.offset_table.get(f"{topic}@{group}"),
            }

        return self.ask(broker, look)

    def wait_copied(self, topic: str, group: str, ends: dict[int, int]) -> None:
        """Wait until the slave knows topic and group, and that all of it was consumed."""

        def copied() -> bool:
            with suppress(SkylarkError):  # while it starts
                master, slave = (
                    self.tables(broker, topic, group) for broker in (self.master, self.slave)
                )
                return master == slave and master["offsets"] == ends
            return False

        poll_until(copied, timeout_s=COPIED_S, what=f"the offsets {ends} at the slave")


def _pull_of(queue: MessageQueue, offset: int) -> PullMessageRequestHeader:
    return PullMessageRequestHeader(
        consumer_group="reader",
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=PullSysFlag.SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
    )


@contextmanager
def running_pair(folder: Path, *, our_master: bool, our_slave: bool) -> Iterator[Pair]:
    """Both brokers, running and connected."""
    with SkylarkNamesrv(folder=folder / "namesrv") as namesrv:
        pair = Pair(namesrv, folder, our_master=our_master, our_slave=our_slave)
        with pair.master, pair.slave:
            yield pair


def restart(broker: Broker) -> None:
    """Stop ours in order; kill Apache's, for which an orderly end takes 15 s."""
    if isinstance(broker, ApacheBroker):
        broker.kill()
    else:
        assert broker.stop() == 0
    broker.start()


def log_start(broker: Broker) -> int:
    """The offset of the first file of a log."""
    return min(int(file.name) for file in (broker.store / "commitlog").iterdir())


def log_bytes(broker: Broker, end: int, start: int = 0) -> bytes:
    """The log from the beginning of a file to an offset; the files say where they belong."""
    content = bytearray(end)
    files = sorted((broker.store / "commitlog").iterdir())
    files = [file for file in files if int(file.name) >= start]
    starts = [start + n * FILE_SIZE for n in range(len(files))]
    assert [int(file.name) for file in files] == starts
    for offset, file in zip(starts, files, strict=True):
        content[offset : offset + FILE_SIZE] = file.read_bytes()[: max(0, end - offset)]
    assert len(content) == end
    return bytes(content[start:])
