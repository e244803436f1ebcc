"""The client instances of this process, by client id.

Clients with the same client id share one instance, and with it connections and routes; an instance
has each group once. Clients share an id if they have the same instance name, and if they are
broadcasting consumers, whose id must be the same after a restart. All others have different ids.

Two clients with one id must use the same name servers, credentials and other settings that requests
show; otherwise the second one gets an error. (Java's client silently uses the cluster of the
first.) The instance stops when everyone who acquired it has released it. A forked child starts with
an empty table. Counterpart of Java's ``MQClientManager``.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from skylark.auth.signature import Credentials
from skylark.client.core.broker_connections import BrokerConnections
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.client_runtime import ClientRuntime, default_runtime, runtime_of
from skylark.client.core.control_loop import PerProcess
from skylark.core.errors import ClientStateError


class _Identity(msgspec.Struct, frozen=True):
    """The settings that must be equal for all clients with one id."""

    name_servers: frozenset[str]
    credentials: Credentials | None
    namespace: str | None
    namespace_v2: str | None
    vip_channel: bool
    stream: bool
    zone: dict[str, str]
    runtime: ClientRuntime | None


class _Entry(msgspec.Struct):
    instance: ClientInstance
    identity: _Identity
    users: int = 1


class InstanceTable:
    """Instances by client id, with the number of their users; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def acquire(
        self,
        options: ClientOptions,
        client_id: str,
        runtime: ClientRuntime | None = None,
        *,
        stream: bool = False,
    ) -> ClientInstance:
        """The instance with this id, made if there is none; not started.

        Raises ConfigError, and ClientStateError if it is in use with other settings.
        """
        endpoint = options.endpoint()
        credentials = options.credentials(endpoint)
        zone = options.zone_entries()
        identity = _Identity(
            frozenset(map(str, endpoint.namesrv)),
            credentials,
            endpoint.namespace or None,
            options.namespace_v2,
            options.vip_channel,
            stream,
            zone,
            runtime_of(options),
        )
        with self._lock:
            entry = self._entries.get(client_id)
            if entry is not None:
                _check_same(client_id, entry.identity, identity)
                entry.users += 1
                return entry.instance
            instance = ClientInstance(
                client_id,
                options,
                endpoint,
                runtime_of(options, runtime) or default_runtime(),
                credentials=credentials,
                stream=stream,
                zone=zone,
                on_release=self._release,
            )
            self._entries[client_id] = _Entry(instance, identity)
            return instance

    def _release(self, instance: ClientInstance) -> bool:
        with self._lock:
            entry = self._entries.get(instance.client_id)
            if entry is None or entry.instance is not instance:
                return True
            entry.users -= 1
            if entry.users > 0:
                return False
            del self._entries[instance.client_id]
            return True


def _check_same(client_id: str, known: _Identity, given: _Identity) -> None:
    different = [
        name.replace("_", " ")
        for name in _Identity.__struct_fields__
        if getattr(known, name) != getattr(given, name)
    ]
    if different:
        raise ClientStateError(
            f"client id {client_id} is in use in this process with other {', '.join(different)}",
            hint="give one of them another instance_name",
        )


_instances: Final = PerProcess(InstanceTable)


def acquire_instance(
    options: ClientOptions,
    client_id: str,
    runtime: ClientRuntime | None = None,
    *,
    stream: bool = False,
) -> ClientInstance:
    """An instance of this process; see :meth:`InstanceTable.acquire`."""
    return _instances().acquire(options, client_id, runtime, stream=stream)


@asynccontextmanager
async def open_instance(
    options: ClientOptions, runtime: ClientRuntime | None = None
) -> AsyncIterator[tuple[ClientInstance, BrokerConnections]]:
    """A started instance and its link to the running loop, for a reader that joins no group."""
    instance = acquire_instance(options, options.client_id(stream=True), runtime, stream=True)
    try:
        await instance.start()
        link = instance.open_link()
        try:
            yield instance, link
        finally:
            await link.release()
    finally:
        await instance.release()


def instance_count() -> int:
    """How many instances are in use: 0 when everything was stopped."""
    return len(_instances())
