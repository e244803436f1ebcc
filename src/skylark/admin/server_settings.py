"""Settings of running brokers and name servers, the key-value table, and write permission.

Name servers do not communicate with each other, so changes are sent to each of them, and failures
are reported. Counterpart of mqadmin's getBrokerConfig, updateBrokerConfig, getNamesrvConfig,
updateNamesrvConfig, updateKvConfig, deleteKvConfig, wipeWritePerm, addWritePerm.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from skylark.admin.admin_session import Operations, Session
from skylark.admin.errors import NotFoundError, ServerFailure
from skylark.admin.fan_out import on_each
from skylark.client.core.argument_checks import checks_arguments
from skylark.client.core.broker_calls import make_request
from skylark.core.config import format_properties, parse_properties
from skylark.core.errors import ConfigError, InvalidParameterError, RemoteProtocolError
from skylark.wire.bodies.common_body import KVTable
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from skylark.wire.fields import Header, decode_ext
from skylark.wire.headers.route import (
    AddWritePermOfBrokerResponseHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    KVKeyRequestHeader,
    PutKVConfigRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
    WritePermOfBrokerRequestHeader,
)

#: Settings that a master and its slaves must not share.
OWN_SETTINGS: Final = frozenset({"brokerId", "brokerRole"})


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one server, by their Java names."""

    server: str
    address: str
    settings: dict[str, str]


class SettingsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of several servers, and servers that failed."""

    servers: tuple[ServerSettings, ...]
    failures: tuple[ServerFailure, ...] = ()


@checks_arguments
class Settings(Operations):
    """Functions about settings."""

    # ---- brokers ---------------------------------------------------------------------------------

    async def brokers(
        self, *, cluster: str | None = None, broker: str | None = None, slaves: bool = True
    ) -> SettingsReport:
        """The settings of all brokers, those of a cluster, or one broker (26).

        A slave is the server ``name#id``; ``slaves=False`` leaves them out. A broker by name is the
        master with its slaves, one by address is alone.
        """
        code, targets = RequestCode.GET_BROKER_CONFIG, await self._targets(cluster, broker, slaves)
        return await _report(targets, code, self._session.call)

    async def set_brokers(
        self,
        changes: Mapping[str, str],
        *,
        cluster: str | None = None,
        broker: str | None = None,
        slaves: bool = True,
    ) -> list[str]:
        """Change settings of running brokers (25); returns the brokers, as :meth:`brokers`.

        The role and the id of a broker (:data:`OWN_SETTINGS`) change on masters only, or on the one
        broker given by its address. Raises NoPermissionError for settings that cannot be changed,
        BrokerError, PartialFailureError.
        """
        session = self._session
        body = _body(changes)

        async def put(name: str, address: str) -> str:
            request = Command(code=RequestCode.UPDATE_BROKER_CONFIG, ext={}, body=body)
            await session.call(address, request)
            return name

        slaves = slaves and not changes.keys() & OWN_SETTINGS
        return list((await on_each(await self._targets(cluster, broker, slaves), put)).all())

    async def _targets(
        self, cluster: str | None, broker: str | None, slaves: bool
    ) -> dict[str, str]:
        find = self._session.brokers if slaves else self._session.masters
        return await find(cluster, broker)

    # ---- name servers ----------------------------------------------------------------------------

    async def name_servers(self) -> SettingsReport:
        """The settings of each name server (319)."""
        session, code = self._session, RequestCode.GET_NAMESRV_CONFIG
        return await _report(session.name_servers, code, session.call_name_server)

    async def set_name_servers(self, changes: Mapping[str, str]) -> list[str]:
        """Change settings of all name servers (318); raises PartialFailureError."""
        request = Command(code=RequestCode.UPDATE_NAMESRV_CONFIG, ext={}, body=_body(changes))
        return await self._session.call_all_name_servers(request)

    # ---- the key-value table ---------------------------------------------------------------------

    async def kv(self, namespace: str, key: str) -> str:
        """One value (101); raises NotFoundError."""
        value = await kv_get(self._session, namespace, key)
        if value is None:
            raise NotFoundError(f"key {key} does not exist in namespace {namespace}")
        return value

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """All keys of a namespace (219); raises NotFoundError for an empty one."""
        header = GetKVListByNamespaceRequestHeader(namespace=namespace)
        request = make_request(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        answer = await self._session.ask_name_servers(request, ResponseCode.QUERY_NOT_FOUND)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            raise NotFoundError(f"namespace {namespace} has no keys")
        return decode_body(KVTable, answer.body or b"{}").table

    async def kv_put(self, namespace: str, key: str, value: str) -> None:
        """Set a value at all name servers; raises PartialFailureError."""
        await kv_put(self._session, namespace, key, value)

    async def kv_delete(self, namespace: str, key: str) -> None:
        """Delete a key from all name servers, if it exists; raises PartialFailureError."""
        await kv_delete(self._session, namespace, key)

    # ---- write permission ------------------------------------------------------------------------

    async def wipe_write_perm(self, broker: str) -> dict[str, int]:
        """Remove write permission of a broker from the routes (205): topics changed, by name
        server.

        Consumers go on reading, so it drains a broker before its removal. It lasts until the broker
        registers again after a restart. Raises NotFoundError, PartialFailureError.
        """
        header = WritePermOfBrokerRequestHeader(broker_name=broker)
        answers = await self._set_write_perm(broker, RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
        return {
            address: decode_ext(WipeWritePermOfBrokerResponseHeader, answer.ext).wipe_topic_count
            for address, answer in answers.items()
        }

    async def add_write_perm(self, broker: str) -> dict[str, int]:
        """Restore write permission of a broker in the routes (327): topics changed, by name
        server."""
        header = WritePermOfBrokerRequestHeader(broker_name=broker)
        answers = await self._set_write_perm(broker, RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
        return {
            address: decode_ext(AddWritePermOfBrokerResponseHeader, answer.ext).add_topic_count
            for address, answer in answers.items()
        }

    async def _set_write_perm(self, broker: str, code: int, header: Header) -> dict[str, Command]:
        session = self._session
        known = (await session.cluster_info()).broker_addr_table
        if broker not in known:
            names = ", ".join(sorted(known)) or "none"
            raise NotFoundError(f"broker {broker} does not exist", hint=f"known: {names}")
        answers = await on_each(
            session.name_servers,
            lambda _, address: session.call_name_server(address, make_request(code, header)),
        )
        return answers.all()


async def _report(
    servers: Mapping[str, str], code: int, call: Callable[[str, Command], Awaitable[Command]]
) -> SettingsReport:
    async def get(name: str, address: str) -> ServerSettings:
        answer = await call(address, make_request(code))
        return ServerSettings(server=name, address=address, settings=_settings(answer))

    found = await on_each(servers, get)
    return SettingsReport(servers=tuple(found.some().values()), failures=found.failures)


async def kv_get(session: Session, namespace: str, key: str) -> str | None:
    """A value of the key-value table; None if there is none."""
    header = KVKeyRequestHeader(namespace=namespace, key=key)
    request = make_request(RequestCode.GET_KV_CONFIG, header)
    answer = await session.ask_name_servers(request, ResponseCode.QUERY_NOT_FOUND)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    return decode_ext(GetKVConfigResponseHeader, answer.ext).value


async def kv_put(session: Session, namespace: str, key: str, value: str) -> None:
    """PUT_KV_CONFIG (100) at all name servers; raises PartialFailureError."""
    header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
    await session.call_all_name_servers(make_request(RequestCode.PUT_KV_CONFIG, header))


async def kv_delete(session: Session, namespace: str, key: str) -> None:
    """DELETE_KV_CONFIG (102) at all name servers; raises PartialFailureError."""
    header = KVKeyRequestHeader(namespace=namespace, key=key)
    await session.call_all_name_servers(make_request(RequestCode.DELETE_KV_CONFIG, header))


def _settings(answer: Command) -> dict[str, str]:
    """Parse settings as sent: ``key=value`` lines in UTF-8, without escapes."""
    try:
        text = (answer.body or b"").decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("the settings are not UTF-8 text") from error
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key: value for key, _, value in pairs}


def _body(changes: Mapping[str, str]) -> bytes:
    if not changes:
        raise InvalidParameterError("no settings given")
    body = format_properties(changes).encode("iso-8859-1")
    try:
        if parse_properties(body) == dict(changes):
            return body
    except ConfigError:
        pass
    raise InvalidParameterError("these settings cannot be written as properties")
