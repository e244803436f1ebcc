"""Client channel: a peer that has sent its client id in a heartbeat.

The members of groups are *channels*, not client ids. A client that reconnects is a second member
until the broker notices that its old connection is closed; a client in three groups is a member
three times. A channel is identified by its peer object, because two clients may send the same id.

Counterpart of Java's ``ClientChannelInfo``, without its time stamp: the time of the last heartbeat
differs from group to group, so each table keeps it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skylark.broker.api import Peer
from skylark.core.names import Address
from skylark.wire.bodies.admin_body import Connection as ConnectionBody

#: Silence after which a channel counts as dead and is closed (``channelExpiredTimeout``).
CHANNEL_EXPIRED_MS: Final = 120_000


class ClientChannel(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One peer, with id, language and version from its heartbeat."""

    peer: Peer
    client_id: str
    language: str | None = "JAVA"
    version: int = 0

    @property
    def address(self) -> str:
        """``ip:port`` of the client's end."""
        return str(Address(*self.peer.remote_address))

    def body(self) -> ConnectionBody:
        """The form in the responses of 203 and 204."""
        return ConnectionBody(
            client_id=self.client_id,
            client_addr=self.address,
            language=self.language,
            version=self.version,
        )

    def __str__(self) -> str:
        return f"{self.client_id} at {self.address}"


def channel_of(
    peer: Peer, client_id: str, *, language: str | int | None, version: int
) -> ClientChannel:
    """The channel of a client that has sent a heartbeat."""
    return ClientChannel(
        peer=peer,
        client_id=client_id,
        # A number is the code of a language that has no name: admins read names.
        language="OTHER" if isinstance(language, int) else language,
        version=version,
    )
