"""Limits of the network layer: each has a default and a defined effect.

``Dispatcher.tasks_max`` limits the running handlers of all connections together.
"""

from __future__ import annotations

import msgspec

from skylark.wire.command_codec import FRAME_SIZE_MAX


class NetLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for all connections of one server or one client."""

    #: Longest frame; a longer one closes the connection (Java: frameMaxLength).
    frame_size_max: int = FRAME_SIZE_MAX
    #: Connections of one server; a further one is closed at once.
    connections_max: int = 10_000
    #: Share of one connection in a turn of the event loop (:mod:`skylark.net.turn_share`); the rest
    #: waits for the next turn. Frames handled per turn:
    frames_per_turn_max: int = 64
    #: received bytes decoded per turn:
    bytes_per_turn_max: int = 64 * 1024
    #: response bytes per turn:
    reply_bytes_per_turn_max: int = 512 * 1024
    #: coroutine handlers started per turn; their own time is not part of the turn:
    tasks_per_turn_max: int = 16
    #: seconds per turn; a request or run that was started is always finished.
    seconds_per_turn_max: float = 0.002
    #: Requests or responses in one write:
    frames_per_write_max: int = 16
    #: bytes after which a write does not wait for further ones.
    bytes_per_write_max: int = 16 * 1024
    #: Running handler tasks of one connection; at the limit the connection stops reading.
    tasks_per_connection_max: int = 256
    #: Bytes of their requests, headers included; at the limit the connection stops reading.
    task_bytes_per_connection_max: int = 32 * 1024 * 1024
    #: Unsent bytes above which the connection stops reading and callers wait.
    write_buffer_high: int = 1024 * 1024
    #: Unsent bytes above which the connection is closed.
    write_buffer_max: int = 64 * 1024 * 1024
    #: A connection without traffic for this long is closed (serverChannelMaxIdleTimeSeconds).
    idle_timeout_s: float = 120.0
    #: Calls to one peer that may wait for a response (Java: server 64, client 65535). At the limit
    #: a client's call waits within its timeout; a server's call fails at once.
    calls_max: int = 65_535
    #: Timeout of a connection attempt (com.rocketmq.remoting.client.connect.timeout).
    connect_timeout_s: float = 3.0
