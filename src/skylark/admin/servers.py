"""Who is there to be asked: the first name server that answers, and the masters it knows.

Name servers know the same, so any of them will do: they are asked in the order given. An answer
with a code other than success becomes the error of that code (:func:`checked`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from skylark.client.calls import Caller
from skylark.core.errors import TransportError, broker_error
from skylark.core.names import Address, format_addresses
from skylark.wire.bodies.route import ClusterInfo
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body

MASTER_ID: Final = 0


class NoBrokerError(TransportError):
    """No broker that could do what was asked has registered with the name server."""


def checked(answer: Command) -> Command:
    """The answer, if it says success; otherwise raises the BrokerError of its code."""
    if answer.code != ResponseCode.SUCCESS:
        raise broker_error(answer.code, answer.remark or f"answered with code {answer.code}")
    return answer


async def ask_name_server(caller: Caller, namesrv: Sequence[Address], request: Command) -> Command:
    """The answer of the first name server that gives one; raises TransportError."""
    problems: list[str] = []
    for address in namesrv:
        try:
            return await caller.call(str(address), request)
        except TransportError as error:
            problems.append(str(error))
    raise TransportError(
        f"no name server answered: {'; '.join(dict.fromkeys(problems))}",
        hint="start one with `skylark up`, or say where it is with -n HOST:PORT",
    )


async def cluster_info(caller: Caller, namesrv: Sequence[Address]) -> ClusterInfo:
    """All clusters and brokers (106)."""
    request = Command(code=RequestCode.GET_BROKER_CLUSTER_INFO)
    answer = checked(await ask_name_server(caller, namesrv, request))
    return decode_body(ClusterInfo, answer.body or b"")


async def masters(
    caller: Caller, namesrv: Sequence[Address], cluster: str | None = None
) -> dict[str, str]:
    """Name -> address of every master, or of those of one cluster; raises NoBrokerError."""
    info = await cluster_info(caller, namesrv)
    found = {
        name: broker.broker_addrs[MASTER_ID]
        for name, broker in sorted(info.broker_addr_table.items())
        if MASTER_ID in broker.broker_addrs and cluster in (None, broker.cluster)
    }
    if not found:
        where = "" if cluster is None else f" of cluster {cluster}"
        clusters = ", ".join(sorted(info.cluster_addr_table)) or "none"
        raise NoBrokerError(
            f"no broker{where} is registered with {format_addresses(namesrv)}",
            hint=f"clusters there: {clusters}",
        )
    return found
