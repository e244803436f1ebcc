"""A client as a broker knows it: a connection that has named itself in a heartbeat.

Groups are made of *channels*, not of client ids. A client that reconnects is a second member until
its old connection is seen to be gone, and a client in three groups is a member three times.
Everything here is identified by the connection object; the client id is what the client says.

Answers to Java's ``ClientChannelInfo``, without its time stamp: when a channel was last heard of
differs from group to group, so each table keeps that for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from skylark.core.names import Address
from skylark.wire.bodies.admin_body import Connection as ConnectionBody
from skylark.wire.command import Command

if TYPE_CHECKING:
    from skylark.net.connection import Connection

#: Silence after which a channel counts as dead and is closed (``channelExpiredTimeout``).
CHANNEL_EXPIRED_MS: Final = 120_000


class ClientChannel(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One connection with what its client says about itself."""

    connection: Connection
    client_id: str
    language: str | None = "JAVA"
    version: int = 0

    @property
    def address(self) -> str:
        """``ip:port`` of the client's end."""
        return str(Address(*self.connection.remote_address))

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


def channel_of(connection: Connection, client_id: str, request: Command) -> ClientChannel:
    """The channel of a client; language and version stand in the frame's header."""
    language = request.language
    return ClientChannel(
        connection=connection,
        client_id=client_id,
        # A number here is a binary code that has no name: admins read names.
        language="OTHER" if isinstance(language, int) else language,
        version=request.version,
    )
