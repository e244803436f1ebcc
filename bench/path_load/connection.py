"""A blocking connection to a broker or name server: writes prepared frames, counts the replies.

It belongs to the process that drives the benchmark, so its cost is not part of any figure. It
imports nothing of Skylark: both commits are driven by the same code, however their modules are
called.
"""

from __future__ import annotations

import json
import re
import socket
from typing import Any, Final

from bench.harness import BenchError

TIMEOUT_S: Final = 60.0
READ_SIZE: Final = 1 << 20
SUCCESS: Final = re.compile(rb'"code":0[,}]')
#: Bit 0 of the flag marks a reply; the broker sends requests too, such as "your group changed".
REPLY: Final = re.compile(rb'"flag":[13][,}]')
ROUTE, MAX_OFFSET = 105, 30


def request_frame(
    code: int, fields: dict[str, str], opaque: int = 0, *, body: bytes = b""
) -> bytes:
    """A request, as a Java client would write it."""
    header = json.dumps(
        {
            "code": code,
            "extFields": fields,
            "flag": 0,
            "language": "JAVA",
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": 513,
        },
        separators=(",", ":"),
    ).encode()
    return join_frame(header, body)


def join_frame(header: bytes, body: bytes) -> bytes:
    """Length of the rest, serialization 0 (JSON) and length of the header, header, body."""
    size = 4 + len(header) + len(body)
    return size.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


class Connection:
    """A socket for a ``with`` block; ``address`` is ``host:port``."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def exchange(self, write: bytes, replies: int) -> list[bytes]:
        """Write once, then wait for so many replies: whole frames without their first length.

        Raises BenchError for a reply that is no success.
        """
        self._socket.sendall(write)
        found: list[bytes] = []
        while len(found) < replies:
            if len(self._received) >= 4:
                end = 4 + int.from_bytes(self._received[:4], "big")
                if len(self._received) >= end:
                    frame, self._received = self._received[4:end], self._received[end:]
                    if is_success(frame):
                        found.append(frame)
                    continue
            part = self._socket.recv(READ_SIZE)
            if not part:
                raise BenchError("the broker closed the connection")
            self._received += part
        return found

    def ask(self, code: int, fields: dict[str, str]) -> tuple[dict[str, Any], bytes]:
        """Header fields and body of the reply to a request without a body."""
        (reply,) = self.exchange(request_frame(code, fields), 1)
        size = int.from_bytes(reply[1:4], "big")
        return json.loads(reply[4 : 4 + size]).get("extFields") or {}, reply[4 + size :]


def is_success(frame: bytes) -> bool:
    """Whether a frame is a reply, not a request of the broker; BenchError if it is a refusal."""
    header = frame[4 : 4 + int.from_bytes(frame[1:4], "big")]
    if not REPLY.search(header):
        return False
    if not SUCCESS.search(header):
        raise BenchError(f"the broker refused a request: {header.decode()}")
    return True


def find_broker(namesrv: Connection, topic: str) -> str:
    """The address of the broker that has the topic."""
    _, route = namesrv.ask(ROUTE, {"topic": topic})
    address = re.search(rb'"(127\.0\.0\.1:\d+)"', route)
    if address is None:
        raise BenchError(f"no broker in the route of {topic}: {route.decode()}")
    return address.group(1).decode()


def max_offset(broker: Connection, topic: str, queue_id: int) -> int:
    """The offset after the last message of a queue."""
    fields, _ = broker.ask(MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
    return int(fields["offset"])
