"""A server whose answers a test scripts: what it is asked is kept, what it says is given."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping

from skylark.core.clock import Clock
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.server import RemotingServer
from skylark.net.transport import Network
from skylark.wire.bodies.route_body import BrokerData, QueueData, TopicRouteData
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import encode_body

#: What to say to a request: a code, a whole answer made of the request, or None for silence.
Answer = int | Callable[[Command], Command | None] | None


class ScriptedServer:
    """Answers each code with what :meth:`answer` was told, in order; the last one stays."""

    def __init__(self, network: Network, clock: Clock) -> None:
        self._dispatcher = Dispatcher()
        self._dispatcher.set_default(self._handle)
        self.server = RemotingServer(self._dispatcher, network, clock)
        self.requests: list[Command] = []
        self._answers: defaultdict[int, deque[Answer]] = defaultdict(deque)
        self.answer(RequestCode.HEART_BEAT, 0)
        self.answer(RequestCode.UNREGISTER_CLIENT, 0)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        await self.server.start(host, port)
        return self.address

    async def stop(self) -> None:
        await self.server.stop(0.0)

    @property
    def address(self) -> str:
        host, port = self.server.address
        return f"{host}:{port}"

    @property
    def connections(self) -> set[Connection]:
        return self.server.connections

    def answer(self, code: int, *answers: Answer) -> None:
        """From now on: these, one after the other."""
        self._answers[code] = deque(answers)

    def answer_ok(
        self, code: int, ext: Mapping[str, str] | None = None, body: object | None = None
    ) -> None:
        """Success with this header and body."""
        raw = body if isinstance(body, bytes) or body is None else encode_body(body)
        self.answer(code, lambda request: response_to(request, 0, ext=dict(ext or {}), body=raw))

    def serve_route(self, topic: str, **brokers: str) -> Callable[[Command], Command]:
        """Be a name server too: ``broker_a="host:port"`` has four queues of the topic.

        Returns the answer, for those who want to change it.
        """
        data = TopicRouteData(
            queue_datas=[
                QueueData(broker_name=name, read_queue_nums=4, write_queue_nums=4, perm=6)
                for name in brokers
            ],
            broker_datas=[
                BrokerData(cluster="c", broker_name=name, broker_addrs={0: address})
                for name, address in brokers.items()
            ],
        )

        def route(request: Command) -> Command:
            if (request.ext or {}).get("topic") == topic:
                return response_to(request, 0, body=encode_body(data))
            return response_to(request, 17, "No topic route info")

        self.answer(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
        return route

    def of(self, code: int) -> list[Command]:
        """The requests with this code."""
        return [request for request in self.requests if request.code == code]

    async def _handle(self, connection: Connection, request: Command) -> Command | None:
        del connection
        self.requests.append(request)
        script = self._answers[request.code]
        answer = script.popleft() if len(script) > 1 else (script[0] if script else 3)
        if answer is None:
            return None
        if isinstance(answer, int):
            return response_to(request, answer, None if answer == 0 else f"scripted {answer}")
        return answer(request)


class Stumbles:
    """An RPC hook that raises what no client expects, for requests of these codes."""

    def __init__(self, *codes: int) -> None:
        self.codes = set(codes)  #: while they are in here

    def before_request(self, address: str, request: Command) -> None:
        if request.code in self.codes:
            raise LookupError(f"no token for {address}")
