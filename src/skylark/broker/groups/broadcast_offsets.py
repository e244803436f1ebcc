"""Offsets of broadcast consumers, for clients that switch between a broker and a proxy.

Each client of a broadcasting group keeps its own offsets. A client that pulls from the broker sends
them along; a proxy that pulls for a client (``requestSource`` 1, ``proxyFrowardClientId``) does not
know them and sends a negative offset. So the broker records for each client how far it has pulled,
and whether through a proxy. When the client comes the other way, the broker answers with the
recorded offset, as if the offset had been reset.

The broker drops a client that has not pulled for ``broadcastOffsetExpireSecond``, or, if it is
connected to this broker, for ``broadcastOffsetExpireMaxSecond``. Every few seconds, while clients
pull, the broker commits the smallest offset of each queue for ``<group>@broadcast``. An unknown
client starts from there; without it from the first message if that is in memory, else from the end.

Only what is committed survives a restart. Counterpart of Java's ``BroadcastOffsetManager``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from skylark.broker.api import Peer
from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.consumer_table import ConsumerTable
from skylark.broker.live_settings import LiveSettings
from skylark.core.clock import Clock
from skylark.store.message_store import MessageStore
from skylark.wire.bodies.heartbeat import ConsumeType
from skylark.wire.codes import ResponseCode
from skylark.wire.headers.pull import PullMessageRequestHeader

FROM_PROXY: Final = 1  # requestSource: a proxy pulls for a broadcast consumer
SWEEP_INTERVAL_MS: Final = 5_000
CLIENT_COUNT_MAX: Final = 100_000
GROUP_SUFFIX: Final = "@broadcast"


class _Client(msgspec.Struct, eq=False):
    """The offsets of one client on one topic."""

    pulled_ms: int
    from_proxy: bool
    offsets: dict[int, int] = {}  # by queue


@dataclass(eq=False)
class BroadcastOffsets:
    """The broadcast consumers of one broker."""

    _live: LiveSettings
    _consumers: ConsumerTable
    _offsets: OffsetTable
    _store: MessageStore
    _clock: Clock
    count_max: int = CLIENT_COUNT_MAX
    #: (topic, group) -> client id -> its offsets
    _clients: dict[tuple[str, str], dict[str, _Client]] = field(default_factory=dict)
    _count: int = 0
    _sweep_at_ms: int = 0

    def __len__(self) -> int:
        return self._count

    def client_id(self, peer: Peer, header: PullMessageRequestHeader) -> str | None:
        """The client of a pull; None if it is not a broadcast consumer."""
        if not self._live.current.enable_broadcast_offset_store:
            return None
        if header.request_source == FROM_PROXY:
            return header.proxy_forward_client_id
        group = self._consumers.group(header.consumer_group)
        if (
            group is None
            or not group.is_broadcasting
            or group.consume_type is not ConsumeType.CONSUME_PASSIVELY
        ):
            return None
        member = group.members.get(peer)
        return None if member is None else member.channel.client_id

    def moved_to(self, client_id: str, header: PullMessageRequestHeader) -> int | None:
        """The offset to answer a pull with; None if the offset of the pull is right."""
        from_proxy = header.request_source == FROM_PROXY
        clients = self._clients.get((header.topic, header.consumer_group), {})
        client = clients.get(client_id)
        came_by_proxy = from_proxy if client is None else client.from_proxy
        if (came_by_proxy and header.queue_offset < 0) or came_by_proxy != from_proxy:
            return self._recorded(client, header)
        return None

    def pulled(
        self,
        client_id: str,
        header: PullMessageRequestHeader,
        code: ResponseCode,
        next_offset: int,
    ) -> None:
        """Record a pull: the client has consumed all that is before the offset it asked for."""
        now_ms = self._clock.steady_ms()
        clients = self._clients.setdefault((header.topic, header.consumer_group), {})
        from_proxy = header.request_source == FROM_PROXY
        client = clients.get(client_id)
        if client is None and self._count < self.count_max:
            client = clients[client_id] = _Client(now_ms, from_proxy)
            self._count += 1
        if client is not None:
            client.pulled_ms = now_ms
            client.from_proxy = from_proxy
            moved = code == ResponseCode.PULL_OFFSET_MOVED
            offset = next_offset if moved else header.queue_offset
            client.offsets[header.queue_id] = max(offset, client.offsets.get(header.queue_id, -1))
        if now_ms >= self._sweep_at_ms:
            self._sweep_at_ms = now_ms + SWEEP_INTERVAL_MS
            self._sweep(now_ms)

    def _recorded(self, client: _Client | None, header: PullMessageRequestHeader) -> int:
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        offset = -1 if client is None else client.offsets.get(queue_id, -1)
        if offset < 0:
            offset = self._offsets.get(f"{group}{GROUP_SUFFIX}", topic, queue_id)
        if offset < 0:
            offset = self._first_offset(topic, queue_id)
        return offset

    def _first_offset(self, topic: str, queue_id: int) -> int:
        queue = self._store.queues.get(topic, queue_id)
        entry = None if queue is None else queue.read_entry(0)
        if queue is None or entry is None or self._store.reader.is_in_memory(entry.log_offset):
            return 0
        return queue.max_offset

    def _sweep(self, now_ms: int) -> None:
        """Commit the smallest offsets, and drop silent clients."""
        config = self._live.current
        expire_ms = config.broadcast_offset_expire_second * 1000
        expire_max_ms = config.broadcast_offset_expire_max_second * 1000
        for (topic, group), clients in list(self._clients.items()):
            smallest: dict[int, int] = {}
            online_ids = frozenset(self._consumers.client_ids(group))
            for client_id, client in list(clients.items()):
                is_online = client_id in online_ids
                silent_ms = now_ms - client.pulled_ms
                if is_online or silent_ms < expire_ms:
                    for queue_id, offset in client.offsets.items():
                        smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
                if silent_ms >= (expire_max_ms if is_online else expire_ms):
                    del clients[client_id]
                    self._count -= 1
            if not clients:
                del self._clients[topic, group]
            for queue_id, offset in smallest.items():
                self._offsets.commit(f"{group}{GROUP_SUFFIX}", topic, queue_id, offset)
