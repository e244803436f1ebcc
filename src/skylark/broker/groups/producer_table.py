"""Producer groups and their channels; also finds the channel of a client by its id.

A broker sends requests to producers for two reasons. It asks *any* member of a group about the
outcome of a transaction (39): the channels take turns. And it passes a reply to *one* client (326)
by its id: it uses the newest channel. Every Java client, consumers included, registers the group
CLIENT_INNER_PRODUCER, so any client can be found here.

Members join by heartbeat (34), and leave by UNREGISTER_CLIENT (35), when their connection closes,
and after 120 s of silence. Unlike in Java, a client can be found while any of its channels is in
any group: there, leaving one group or closing an old channel removes the client id altogether.

``skylark up`` runs a resolver of Spark's transactions, which joins a group of its own. It is not
listed (204, 328) until the broker has asked it about a transaction: tools that count producers
would show it on every broker, with Spark or without.

Names of producer groups are not checked, so their number per peer and their length are limited;
others are not registered. The class does no I/O, like the table of consumers. Counterpart of
Java's ``ProducerManager``.
"""

from __future__ import annotations

import logging
from itertools import chain, islice
from typing import Final

import msgspec

from skylark.broker.api import Peer
from skylark.broker.groups.client_channel import CHANNEL_EXPIRED_MS, ClientChannel
from skylark.core.names import INTERNAL_PRODUCER_GROUPS, SPARK_PRODUCER_GROUP
from skylark.wire.bodies.admin_body import ProducerConnection, ProducerInfo, ProducerTableInfo

logger = logging.getLogger(__name__)

GROUPS_PER_PEER_MAX: Final = 10_000
GROUP_NAME_LENGTH_MAX: Final = 255


def _level(group_name: str) -> int:
    """The log level of joins and leaves: internal groups are not interesting."""
    return logging.DEBUG if group_name in INTERNAL_PRODUCER_GROUPS else logging.INFO


def _is_of_resolvers(group_name: str) -> bool:
    """Whether the members of a group are resolvers of Spark's transactions, in any namespace."""
    return group_name.rpartition("%")[2] == SPARK_PRODUCER_GROUP


class _Client(msgspec.Struct, eq=False):
    """A peer, its newest channel data, and its groups."""

    channel: ClientChannel
    groups: set[str] = set()
    has_too_many: bool = False


class _Group(msgspec.Struct, eq=False):
    """The time of the last heartbeat of each member, in order of joining, and whose turn it is."""

    #: False for resolvers that were not asked about a transaction yet.
    has_work: bool
    heard_ms: dict[Peer, int] = {}
    turn: int = 0

    def take_turn(self) -> Peer | None:
        members = self.heard_ms
        self.has_work = True
        self.turn = start = (self.turn + 1) % len(members)
        for peer in chain(islice(members, start, None), islice(members, start)):
            if not peer.is_closing:
                return peer
        return None


class ProducerTable:
    """All producer groups that have members."""

    def __init__(self, *, channel_expired_ms: int = CHANNEL_EXPIRED_MS) -> None:
        self._groups: dict[str, _Group] = {}
        self._clients: dict[Peer, _Client] = {}
        # client id -> its channels, the newest last
        self._peers: dict[str, dict[Peer, None]] = {}
        self.channel_expired_ms = channel_expired_ms

    # --- events -----------------------------------------------------------------------------------

    def knows(self, group_name: str, peer: Peer) -> bool:
        """Whether a peer is registered in a group."""
        client = self._clients.get(peer)
        return client is not None and group_name in client.groups

    def heartbeat(self, group_name: str, channel: ClientChannel, now_ms: int) -> bool:
        """One producer group of a heartbeat; whether it is registered now."""
        client = self._register(channel)
        if group_name not in client.groups:
            if len(client.groups) >= GROUPS_PER_PEER_MAX or len(group_name) > GROUP_NAME_LENGTH_MAX:
                if not client.has_too_many:
                    client.has_too_many = True
                    logger.warning(
                        "%s: skipped producer groups, too many or too long names",
                        channel,
                    )
                return False
            client.groups.add(group_name)
            logger.log(_level(group_name), "producer group %s: %s joined", group_name, channel)
        group = self._groups.get(group_name)
        if group is None:
            group = self._groups[group_name] = _Group(has_work=not _is_of_resolvers(group_name))
        group.heard_ms[channel.peer] = now_ms
        return True

    def unregister(self, group_name: str, peer: Peer) -> None:
        """A client leaves one group (35)."""
        client = self._clients.get(peer)
        if client is not None and group_name in client.groups:
            logger.log(_level(group_name), "producer group %s: %s left", group_name, client.channel)
            self._remove(group_name, client)

    def channel_closed(self, peer: Peer) -> None:
        """A peer is gone: its client has left all its groups."""
        client = self._clients.get(peer)
        if client is not None:
            for group_name in sorted(client.groups):
                self.unregister(group_name, peer)

    def expire(self, now_ms: int) -> list[Peer]:
        """Remove silent channels; the caller closes them. Call it every 10 s."""
        silent = [
            (group_name, self._clients[peer])
            for group_name, group in self._groups.items()
            for peer, heard_ms in group.heard_ms.items()
            if now_ms - heard_ms > self.channel_expired_ms
        ]
        for group_name, client in silent:
            logger.warning(
                "producer group %s: %s sent no heartbeat for too long", group_name, client.channel
            )
            self._remove(group_name, client)
        return list(dict.fromkeys(client.channel.peer for _, client in silent))

    def refresh(self, now_ms: int) -> None:
        """Renew every connected peer: a test that moves virtual time must not expire clients."""
        for group in self._groups.values():
            for peer in group.heard_ms:
                if not peer.is_closing:
                    group.heard_ms[peer] = now_ms

    # --- reading ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._groups)

    def find(self, client_id: str) -> Peer | None:
        """The newest open channel of a client, in any group."""
        for peer in reversed(self._peers.get(client_id, {})):
            if not peer.is_closing:
                return peer
        return None

    def next_channel(self, group_name: str) -> Peer | None:
        """An open channel of a group, each in its turn; None if there is none."""
        group = self._groups.get(group_name)
        return group.take_turn() if group is not None else None

    def connection_list(self, group_name: str) -> ProducerConnection | None:
        """The answer to 204; None for a group without members."""
        group = self._groups.get(group_name)
        if group is None or not group.has_work:
            return None
        return ProducerConnection(
            connection_set=[self._clients[member].channel.body() for member in group.heard_ms]
        )

    def table_info(self) -> ProducerTableInfo:
        """The answer to 328: all groups. Java prints a socket address with a slash before it."""
        return ProducerTableInfo(
            data={
                group_name: [
                    self._info(peer, heard_ms) for peer, heard_ms in group.heard_ms.items()
                ]
                for group_name, group in self._groups.items()
                if group.has_work
            }
        )

    # --- inside -----------------------------------------------------------------------------------

    def _info(self, peer: Peer, heard_ms: int) -> ProducerInfo:
        channel = self._clients[peer].channel
        return ProducerInfo(
            client_id=channel.client_id,
            remote_ip=f"/{channel.address}",
            language=channel.language,
            version=channel.version,
            last_update_timestamp=heard_ms,
        )

    def _register(self, channel: ClientChannel) -> _Client:
        client = self._clients.get(channel.peer)
        if client is None:
            client = self._clients[channel.peer] = _Client(channel)
        elif client.channel.client_id != channel.client_id:
            self._forget_id(client.channel)
        client.channel = channel
        self._peers.setdefault(channel.client_id, {})[channel.peer] = None
        return client

    def _remove(self, group_name: str, client: _Client) -> None:
        peer = client.channel.peer
        group = self._groups[group_name]
        del group.heard_ms[peer]
        if not group.heard_ms:
            del self._groups[group_name]
        client.groups.discard(group_name)
        if not client.groups:
            del self._clients[peer]
            self._forget_id(client.channel)

    def _forget_id(self, channel: ClientChannel) -> None:
        peers = self._peers[channel.client_id]
        del peers[channel.peer]
        if not peers:
            del self._peers[channel.client_id]
