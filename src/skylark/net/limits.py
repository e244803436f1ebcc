"""Limits of the network runtime: each has a default, and a defined answer when it is reached.

The limit of handlers at work for all connections together stands in ``Dispatcher.tasks_max``.
"""

from __future__ import annotations

import msgspec

from skylark.wire.command_codec import FRAME_SIZE_MAX


class NetLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one process allows its peers; one object serves all connections of a role."""

    #: Longest frame taken; a longer one closes the connection (Java: frameMaxLength).
    frame_size_max: int = FRAME_SIZE_MAX
    #: Connections of one server; a further one is closed at once.
    connections_max: int = 10_000
    #: The share of one connection in a turn of the event loop (:mod:`skylark.net.turn_share`); what
    #: it delivered beyond that waits for the next turn. Frames handled, and
    frames_per_turn_max: int = 64
    #: bytes taken from what was read, and
    bytes_per_turn_max: int = 64 * 1024
    #: bytes answered, and
    reply_bytes_per_turn_max: int = 512 * 1024
    #: coroutine handlers started: each runs in the turn after, when nobody counts, and
    tasks_per_turn_max: int = 16
    #: seconds spent, for requests that cost much; one request or run is always handled to its end.
    seconds_per_turn_max: float = 0.002
    #: Requests or answers that leave in one write, and
    frames_per_write_max: int = 16
    #: their bytes, after which no further one is waited for.
    bytes_per_write_max: int = 16 * 1024
    #: Requests of one connection handled by tasks at a time; reading stops until one is done.
    tasks_per_connection_max: int = 256
    #: Bytes of such requests, headers included; reading stops until there is room.
    task_bytes_per_connection_max: int = 32 * 1024 * 1024
    #: While more than this waits to be written to a peer, nothing is read from it and callers wait.
    write_buffer_high: int = 1024 * 1024
    #: Replies and notices that a peer leaves unread beyond this close its connection.
    write_buffer_max: int = 64 * 1024 * 1024
    #: Neither read nor written for this long: closed (serverChannelMaxIdleTimeSeconds).
    idle_timeout_s: float = 120.0
    #: Calls to one peer that may wait for an answer (server 64, client 65535 in Java); a client's
    #: further call waits for its turn within its timeout, a server's is refused.
    calls_max: int = 65_535
    #: Time a connection attempt may take (com.rocketmq.remoting.client.connect.timeout).
    connect_timeout_s: float = 3.0
