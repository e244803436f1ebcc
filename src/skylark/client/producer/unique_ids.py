"""Generator of unique message ids.

Every client that sends draws from a generator of its own with a random salt, so that two in one
process, or in a process and its forked child, never draw the same. A message gets an id once: sent
again, it keeps the one it has. The form stands in :mod:`skylark.core.hashing`. Counterpart of
Java's ``MessageClientIDSetter``.
"""

from __future__ import annotations

import ipaddress
import os

from skylark.client.core.client_options import ClientOptions, local_address
from skylark.core.clock import TimeSource
from skylark.core.hashing import UniqueIdGenerator
from skylark.wire.properties import PROPERTY_UNIQ_KEY


def unique_id_generator(options: ClientOptions, clock: TimeSource) -> UniqueIdGenerator:
    """A generator for one client."""
    return UniqueIdGenerator(
        ip=_packed(options.client_ip or local_address(), clock),
        pid=os.getpid(),
        salt=int.from_bytes(os.urandom(4)),
        now_ms=clock.now_ms,
    )


def ensure_unique_id(properties: dict[str, str], generator: UniqueIdGenerator) -> str:
    """The unique id of a message with these properties, set if it had none."""
    known = properties.get(PROPERTY_UNIQ_KEY)
    if known is None:
        known = properties[PROPERTY_UNIQ_KEY] = generator.next_id()
    return known


def _packed(address: str, clock: TimeSource) -> bytes:
    try:
        return ipaddress.ip_address(address.strip("[]")).packed
    except ValueError:  # a client_ip that is a name: the time stands in, as in Java
        return (clock.now_ms() & 0xFFFF_FFFF).to_bytes(4)
