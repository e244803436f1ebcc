"""A stand-in for a connection where only its identity, address and state matter."""

from __future__ import annotations

from skylark.broker.api import Peer
from skylark.broker.groups.client_channel import ClientChannel
from skylark.net.connection import Connection


class FakeConnection(Connection):
    """Needs no loop. ``close`` only notes it: nothing is told to anybody."""

    def __init__(self, port: int = 1) -> None:
        self.remote_address = ("10.0.0.1", port)
        self._fake_closing = False

    def __repr__(self) -> str:
        return f"<FakeConnection {self.remote_address[1]}>"

    @property
    def is_closing(self) -> bool:
        return self._fake_closing

    def close(self) -> None:
        self._fake_closing = True


def channel(client_id: str, port: int = 1, peer: Peer | None = None) -> ClientChannel:
    return ClientChannel(
        peer=peer or FakeConnection(port),
        client_id=client_id,
        language="JAVA",
        version=513,
    )
