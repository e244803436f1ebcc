"""A client as a broker knows it: a peer that has given its client id in a heartbeat.

Groups are made of *channels*, not of client ids. A client that reconnects is a second member until
its old connection is seen to be gone, and a client in three groups is a member three times.
Everything here is identified by the object of the peer; the client id is what the client says.

Counterpart of Java's ``ClientChannelInfo``, without its time stamp: when a channel was last heard
of differs from group to group, so each table keeps that for itself.
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
    """One peer, with what its client says about itself."""

    peer: Peer
    client_id: str
    language: str | None = "JAVA"
    version: int = 0

    @property
    def address(self) -> str:
        """``ip:port`` of the client's end."""
        return str(Address(*self.peer.remote_address))

    def body(self) -> ConnectionBody:
        """As it is shown by 203 and 204."""
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
