"""Health check: whether every name server, and every broker they know, responds.

It requests the cluster (106) from name servers and the runtime table (28) from brokers. The event
loop that serves clients handles both, so a server that hangs does not respond. Servers that do not
respond are in the report with the reason; they raise no error. ``skylark ping`` uses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

import msgspec

from skylark.admin.admin_session import Session
from skylark.admin.fan_out import few_at_a_time
from skylark.client.core.broker_calls import make_request
from skylark.core.errors import SkylarkError
from skylark.wire.bodies.common_body import KVTable
from skylark.wire.bodies.route_body import ClusterInfo
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body

Role: TypeAlias = Literal["namesrv", "master", "slave", "broker"]  # broker: role unknown


class ServerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One server: the time of its response, or why there is none."""

    server: str
    role: Role
    address: str
    answer_ms: float | None  #: None: it does not respond
    problem: str | None = None


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """All servers; ``is_healthy`` if there are name servers and brokers, and all respond."""

    servers: tuple[ServerHealth, ...]

    @property
    def is_healthy(self) -> bool:
        roles = {server.role for server in self.servers}
        answering = all(server.answer_ms is not None for server in self.servers)
        return answering and {"namesrv", "master"} <= roles

    @property
    def has_name_servers(self) -> bool:
        """Whether there are name servers, and all of them respond."""
        found = [server for server in self.servers if server.role == "namesrv"]
        return bool(found) and all(server.answer_ms is not None for server in found)


async def check_health(session: Session, *, with_brokers: bool = True) -> HealthReport:
    """Check every name server, and every broker that one of them knows."""
    brokers: dict[str, tuple[str, Role]] = {}

    async def ask_name_server(address: str) -> ServerHealth:
        async def ask() -> None:
            request = make_request(RequestCode.GET_BROKER_CLUSTER_INFO)
            answer = await session.call_name_server(address, request)
            info = decode_body(ClusterInfo, answer.body or b"{}")
            for name, data in info.broker_addr_table.items():
                for number, place in data.broker_addrs.items():
                    brokers[place] = name, "slave" if number else "master"

        return await _timed(session, address, address, "namesrv", ask)

    async def ask_broker(address: str) -> ServerHealth:
        async def ask() -> None:
            await session.ask(KVTable, address, RequestCode.GET_BROKER_RUNTIME_INFO)

        return await _timed(session, brokers[address][0], address, brokers[address][1], ask)

    servers = await few_at_a_time(session.name_servers, ask_name_server)
    if with_brokers:
        ordered = sorted(brokers, key=lambda address: (brokers[address], address))
        servers += await few_at_a_time(ordered, ask_broker)
    return HealthReport(servers=tuple(servers))


async def check_broker(session: Session, address: str) -> HealthReport:
    """Check one broker, without a name server."""

    async def ask() -> None:
        await session.ask(KVTable, address, RequestCode.GET_BROKER_RUNTIME_INFO)

    return HealthReport(servers=(await _timed(session, address, address, "broker", ask),))


async def _timed(
    session: Session, server: str, address: str, role: Role, ask: Callable[[], Awaitable[None]]
) -> ServerHealth:
    begun = session.clock.monotonic()
    try:
        await ask()
    except SkylarkError as error:
        return ServerHealth(
            server=server, role=role, address=address, answer_ms=None, problem=str(error)
        )
    answer_ms = round((session.clock.monotonic() - begun) * 1000, 1)
    return ServerHealth(server=server, role=role, address=address, answer_ms=answer_ms)
