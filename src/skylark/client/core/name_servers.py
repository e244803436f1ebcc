"""Name servers of a client: chooses one, and sends requests to it.

All name servers have the same data. The client keeps one while the connection to it is open; then
it tries the others one after the other, from a random start, so that the clients of a cluster are
spread over its name servers. A call fails when all of them have failed. (Java's client since 5.0
tries only one per call.) Runs on the control loop. The list is fixed when the client is made;
fetching it by HTTP, as Java's client can, is not supported
(:class:`~skylark.client.core.client_options.ClientOptions` refuses it). Counterpart of Java's
``NettyRemotingClient`` (name server part) and ``MQClientAPIImpl``.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Protocol

from skylark.client.core.broker_calls import TIMEOUT_S, make_request
from skylark.core.errors import ClientError, NoNameServerError, TransportError
from skylark.core.names import Address
from skylark.wire.bodies.route_body import TopicRouteData
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from skylark.wire.headers.route import GetRouteInfoRequestHeader

logger = logging.getLogger(__name__)


class NameServerCaller(Protocol):
    """The part of a link that is used here."""

    async def call_name_server(
        self, address: str, request: Command, timeout_s: float = TIMEOUT_S
    ) -> Command:
        """Send to the name server at ``address`` and return its response, with any code.

        Raises TransportError if this server does not respond.
        """

    def connected(self, address: str) -> bool:
        """Whether there is a connection."""


class NameServers:
    """Requests to a name server that responds."""

    def __init__(
        self,
        caller: NameServerCaller,
        addresses: Sequence[Address],
        *,
        timeout_s: float = TIMEOUT_S,
        rng: random.Random | None = None,
    ) -> None:
        self._caller = caller
        self._timeout_s = timeout_s
        #: In the order in which this client tries them.
        self.addresses = [str(address) for address in dict.fromkeys(addresses)]
        rng = rng or random.Random()
        rng.shuffle(self.addresses)
        self._index = rng.randrange(len(self.addresses)) if self.addresses else 0
        self.chosen: str | None = None  #: the one that responded last

    async def call(self, request: Command) -> Command:
        """The response of a name server, with any code; raises NoNameServerError."""
        problems: list[str] = []
        for address in self._in_turn():
            try:
                answer = await self._caller.call_name_server(address, request, self._timeout_s)
            except TransportError as error:
                logger.info("name server %s does not respond: %s", address, error)
                problems.append(error.message)  # its hint says what ours says
                last = error
                continue
            if self.chosen != address:
                logger.info("using name server %s", address)
                self.chosen = address
            return answer
        if not problems:
            raise NoNameServerError("no name server is known", hint="pass one as namesrv")
        raise NoNameServerError(
            f"no name server answers: {'; '.join(dict.fromkeys(problems))}",
            hint="start one, or correct the address (namesrv=..., NAMESRV_ADDR)",
        ) from last

    def _in_turn(self) -> list[str]:
        """All addresses, in the order in which this call tries them."""
        chosen, addresses = self.chosen, self.addresses
        if chosen is not None and self._caller.connected(chosen):
            start = addresses.index(chosen)
        else:
            start = self._index = (self._index + 1) % len(addresses) if addresses else 0
        return addresses[start:] + addresses[:start]

    # ---- requests -------------------------------------------------------------------------------

    async def route(self, topic: str) -> TopicRouteData | None:
        """GET_ROUTEINFO_BY_TOPIC (105); None if there is no such topic (17)."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        request = make_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        answer = await self.call(request)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise ClientError(
                answer.remark or f"the name server answered with code {answer.code}",
                response_code=answer.code,
                hint=f"asked at {self.chosen}",
            )
        return decode_body(TopicRouteData, answer.body or b"{}")
