"""The key-value table: namespace -> key -> value, set by operators and kept in a file.

One namespace has a special meaning: ``ORDER_TOPIC_CONFIG`` names topics whose queues have a fixed
order (``topic -> broker-a:4;broker-b:4``). Brokers receive it when they register.

The file is JSON in Java's layout, ``{"configTable":{"namespace":{"key":"value"}}}``, so a Java name
server can continue with it, and vice versa. Every change rewrites it as a whole (see
:mod:`skylark.namesrv.atomic_file`). A namespace stays when its last key is deleted, as in Java.

Counterpart of Java's ``KVConfigManager``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skylark.core.errors import BrokerError, ConfigError, RemoteProtocolError
from skylark.wire.bodies.common_body import Body
from skylark.wire.fastjson import decode_body, encode_body

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"


class KvFile(Body, kw_only=True):
    """The content of ``kvConfig.json``."""

    config_table: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)


class KvTable:
    """The table in memory. ``version`` counts its changes."""

    def __init__(self, size_max: int) -> None:
        self.version = 0
        self._size_max = size_max
        self._table: dict[str, dict[str, str]] = {}

    def load(self, content: bytes) -> None:
        """Load the content of a file; raises ConfigError."""
        try:
            self._table = decode_body(KvFile, content, size_max=self._size_max).config_table
        except RemoteProtocolError as error:
            raise ConfigError(
                f"the KV file cannot be read: {error}",
                hint="repair it, remove it, or set another kvConfigPath",
            ) from error
        self.version += 1

    def encode(self) -> bytes:
        """The content of the file."""
        return encode_body(KvFile(config_table=self._table))

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All keys and values of a namespace, None if it does not exist."""
        found = self._table.get(namespace)
        return None if found is None else dict(found)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; raises BrokerError when the table would grow beyond its limit."""
        before = self._table
        self._table = {**before, namespace: {**before.get(namespace, {}), key: value}}
        if len(self.encode()) > self._size_max:
            self._table = before
            raise BrokerError(
                f"the KV table would exceed {self._size_max} bytes",
                hint="delete keys or raise kvSizeMax",
            )
        self.version += 1

    def delete(self, namespace: str, key: str) -> None:
        """Delete a value, if it exists."""
        self._table.get(namespace, {}).pop(key, None)
        self.version += 1
