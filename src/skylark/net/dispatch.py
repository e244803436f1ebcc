"""From request code to handler: order of checks, interceptors, errors to response codes.

A *hot* handler is a plain function called inline while the bytes are being read; it must not
block and returns the response, None when there is no answer, or LATER when the answer comes by
``Connection.answer``. The response may be a ``ShapedResponse``, which is encoded faster. Where the
connection takes frames, it may also be one, encoded already.
A hot handler may have a twin for requests of one code that came together (``run``). A *cold*
handler is a coroutine function; it runs as a task owned by the connection, so a slow one delays
nobody else.

Order of checks for a request, as in Java's ``NettyRemotingAbstract.processRequestCommand``:

1. no handler for the code (nor a default one): code 3, `` request type <code> not supported``;
2. the server is shutting down and the client understands it: 1500 GO_AWAY;
3. too many tasks: code 2, ``[OVERLOAD]...``;
4. interceptors' ``before`` (access control, metrics, faults), the handler, their ``after``.

A request that gets as far as 4 sees each interceptor's ``after`` exactly once, when its answer is
known or when it is known that there is none (where all are ``alike``, none may see it); with
LATER that may be much later, and after the connection has ended. ``before`` is always called while
the bytes are being read.

A handler or interceptor that raises is answered with code 1 and the cause, and logged once; a
:class:`BrokerError` or a header or body that cannot be read is the client's business and answered
with its own code without a log line. One-way requests are never answered, whatever happens.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

import msgspec

from skylark.core.errors import BrokerError, LocalProtocolError, RemoteProtocolError
from skylark.net.write_queue import discard
from skylark.wire.codes import ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.command_codec import ShapedResponse, write

if TYPE_CHECKING:
    from skylark.net.connection import Connection

log = logging.getLogger(__name__)


class Later(enum.Enum):
    """What a hot handler returns whose answer comes later."""

    LATER = enum.auto()


LATER: Final = Later.LATER
#: What a hot handler returns, unless it is a frame.
Answer: TypeAlias = Command | Literal[Later.LATER] | None
#: What ``Connection.answer`` sends: a frame only if the connection takes frames, None for nothing.
LateAnswer: TypeAlias = Command | ShapedResponse | bytes | None

#: If the connection takes frames, the answer may also be one.
HotHandler = Callable[["Connection", Command], Answer | ShapedResponse | bytes]
#: The same for requests of one code that came together. What it raises is the answer to all of
#: them.
RunHandler = Callable[["Connection", list[Command]], Sequence[Answer | ShapedResponse | bytes]]
ColdHandler = Callable[["Connection", Command], Awaitable[Command | None]]

#: Clients above this version (V5_3_1) know GO_AWAY; older ones are served until the end.
GO_AWAY_ABOVE_VERSION = 475

#: Remarks repeat names that a client sent, which may have any length: the rest is left out.
REMARK_LENGTH_MAX = 16_384

OVERLOAD_REMARK = "[OVERLOAD]system busy, start flow control for a while"


class NoAnswerError(Exception):
    """Raised by an interceptor that took the request over: no handler runs, nothing is sent."""


class Interceptor(Protocol):
    """Sees every request that has a handler, and every response on its way out.

    One with the attribute ``alike`` set judges by code, connection and time alone, and need not see
    responses. Where all are such, requests that came together are judged by the first of them, and
    answers that are frames pass them by.
    """

    def before(self, connection: Connection, request: Command) -> Command | None:
        """None to go on; a command to answer with it at once; or raise as a handler may.

        NoAnswerError keeps the request from its handler and the client without an answer.
        """

    def after(
        self, connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        """The response to send in place of ``response``; None sends nothing.

        Who keeps a ``ViewResponse`` for later copies its body: its lease ends here otherwise.
        """


class Route(msgspec.Struct, frozen=True):
    """How one request code is handled: exactly one of the two is set."""

    hot: HotHandler | None = None
    cold: ColdHandler | None = None


class Dispatcher:
    """Request code to handler, for a server or for the requests a client receives."""

    def __init__(
        self, interceptors: Iterable[Interceptor] = (), *, tasks_max: int = 10_000
    ) -> None:
        self._routes: dict[int, Route] = {}
        #: Handlers of requests that come together, by their code.
        self.runs: dict[int, RunHandler] = {}
        self._default: Route | None = None
        self.interceptors = tuple(interceptors)
        self.shutting_down = False
        #: Called when runs of a connection were handled, so many requests, and the answers left.
        self.after_runs: Callable[[int], None] | None = None
        #: Cold handlers at work, of all connections. They outlive their connection.
        self.tasks: set[asyncio.Task[None]] = set()
        #: A request beyond this many is answered SYSTEM_BUSY with [OVERLOAD].
        self.tasks_max = tasks_max

    @property
    def interceptors(self) -> tuple[Interceptor, ...]:
        """Who sees each request before its handler does, in this order."""
        return self._interceptors

    @interceptors.setter
    def interceptors(self, interceptors: Iterable[Interceptor]) -> None:
        self._interceptors = tuple(interceptors)
        #: All interceptors are ``alike``.
        self.judged_alike = all(getattr(each, "alike", False) for each in self._interceptors)

    def add_hot(self, code: int, handler: HotHandler, *, run: RunHandler | None = None) -> None:
        """``run`` takes requests that came together, or alone; ``handler`` is its other form."""
        self._add(code, Route(hot=handler))
        if run is not None:
            self.runs[int(code)] = run

    def add_run(self, code: int, run: RunHandler) -> None:
        """``run`` takes all requests of a code: those that came together, or one alone."""

        def alone(connection: Connection, request: Command) -> Answer | ShapedResponse | bytes:
            return run(connection, [request])[0]

        self.add_hot(code, alone, run=run)

    def add_cold(self, code: int, handler: ColdHandler) -> None:
        self._add(code, Route(cold=handler))

    def set_default(self, handler: ColdHandler) -> None:
        """The handler of all codes that have none of their own."""
        self._default = Route(cold=handler)

    def _add(self, code: int, route: Route) -> None:
        if code in self._routes:
            raise ValueError(f"request code {code} has a handler already")
        self._routes[int(code)] = route

    @property
    def codes(self) -> frozenset[int]:
        """The codes that have a handler of their own."""
        return frozenset(self._routes)

    def dispatch(self, connection: Connection, request: Command) -> None:
        """Handle one request: the response, if any, goes out through ``connection``."""
        route = self._routes.get(request.code, self._default)
        if route is None:
            remark = f" request type {request.code} not supported"
            self._answer(connection, request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        elif self.shutting_down and request.version > GO_AWAY_ABOVE_VERSION:
            self._send_away(connection, request)
        elif route.hot is not None:
            self._run_hot(connection, request, route.hot)
        elif len(self.tasks) >= self.tasks_max:
            self._answer(connection, request, ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
        elif route.cold is not None:
            self._start_cold(connection, request, route.cold)

    def _run_hot(self, connection: Connection, request: Command, handler: HotHandler) -> None:
        response: Answer | ShapedResponse | bytes
        try:
            response = self._before(connection, request)
            if response is None:
                response = handler(connection, request)
        except NoAnswerError:
            response = None
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - becomes code 1
            response = error_response(request, error)
        if response is LATER:
            connection.hold(request)
        else:
            self.finish(connection, request, response)

    def dispatch_run(self, connection: Connection, requests: list[Command]) -> None:
        """:meth:`dispatch` for requests that came together, whose codes are in ``runs``.

        They have the same handler there.
        """
        admitted = self._admitted(connection, requests)
        if not admitted:
            return
        answers: Sequence[Answer | ShapedResponse | bytes]
        try:
            answers = self.runs[admitted[0].code](connection, admitted)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as in _run_hot
            answers = [error_response(request, error) for request in admitted]
        for request, response in zip(admitted, answers, strict=True):
            if response is LATER:
                connection.hold(request)
            else:
                self.finish(connection, request, response)

    def _admitted(self, connection: Connection, requests: list[Command]) -> list[Command]:
        """Those that a handler is to see; of one code, the first may speak for the others."""
        if self.shutting_down or not self.judged_alike:
            return [each for each in requests if self._is_admitted(connection, each)]
        if len(requests) == 1:
            return requests if self._is_admitted(connection, requests[0]) else []
        spoken_for: set[int] = set()
        admitted: list[Command] = []
        for index, request in enumerate(requests):
            if request.code not in spoken_for:
                if not self._is_admitted(connection, request):
                    rest = requests[index + 1 :]
                    return admitted + [each for each in rest if self._is_admitted(connection, each)]
                spoken_for.add(request.code)
            admitted.append(request)
        return admitted

    def _is_admitted(self, connection: Connection, request: Command) -> bool:
        """Whether a handler is to see the request; if not, it is answered here."""
        if self.shutting_down and request.version > GO_AWAY_ABOVE_VERSION:
            self._send_away(connection, request)
            return False
        response: Command | None
        try:
            response = self._before(connection, request)
            if response is None:
                return True
        except NoAnswerError:
            response = None
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as in _run_hot
            response = error_response(request, error)
        self.finish(connection, request, response)
        return False

    def _start_cold(self, connection: Connection, request: Command, handler: ColdHandler) -> None:
        response: Command | None = None
        try:
            response = self._before(connection, request)
            if response is None:
                connection.spawn(self._run_cold(connection, request, handler), request)
                return
        except NoAnswerError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever an interceptor raises becomes code 1
            response = error_response(request, error)
        self.finish(connection, request, response)

    async def _run_cold(
        self, connection: Connection, request: Command, handler: ColdHandler
    ) -> None:
        response: Command | None
        try:
            response = await handler(connection, request)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody wants this task to end: something that the handler waited for was cancelled.
            response = error_response(request, error)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises becomes code 1
            response = error_response(request, error)
        if response is not None and not request.is_oneway:
            await connection.drain()  # a slow reader takes its answers one by one
        self.finish(connection, request, response)

    def _before(self, connection: Connection, request: Command) -> Command | None:
        for interceptor in self._interceptors:
            answer = interceptor.before(connection, request)
            if answer is not None:
                return answer
        return None

    def finish(self, connection: Connection, request: Command, response: LateAnswer) -> None:
        """Send the answer, or none, past the interceptors; once for each request.

        A frame is given only where none of them would change it or needs to see it. A shaped
        response becomes a frame there, and a command elsewhere.
        """
        if isinstance(response, ShapedResponse):
            response = _encoded(response) if connection.takes_frames else response.command()
        if isinstance(response, bytes):
            connection.reply_frame(request, response)
            return
        answer = response
        for interceptor in reversed(self._interceptors):
            try:
                answer = interceptor.after(connection, request, answer)
            except Exception as error:  # noqa: BLE001 - as if the handler had raised it
                answer = error_response(request, error)
        if answer is not response:
            discard(response)
        if answer is not None:
            remark = answer.remark
            if remark is not None and len(remark) > REMARK_LENGTH_MAX:
                answer.remark = f"{remark[:REMARK_LENGTH_MAX]}... ({len(remark)} characters)"
            connection.reply(request, answer)

    def _send_away(self, connection: Connection, request: Command) -> None:
        remark = "please go away, the server is shutting down: connect again and repeat"
        self._answer(connection, request, ResponseCode.GO_AWAY, remark)

    def _answer(self, connection: Connection, request: Command, code: int, remark: str) -> None:
        connection.reply(request, response_to(request, code, remark))


def _encoded(response: ShapedResponse) -> bytes | Command:
    """The frame; the command where it cannot be written, for which ``reply`` sends a substitute."""
    try:
        return write(response)
    except LocalProtocolError:
        return response.command()


def error_response(request: Command, error: BaseException) -> Command:
    """The answer to a request whose handler raised ``error``."""
    if isinstance(error, BrokerError):
        return response_to(request, error.code, str(error))
    if isinstance(error, RemoteProtocolError):
        return response_to(request, ResponseCode.SYSTEM_ERROR, str(error))
    log.error("request %s (opaque %s) failed", request.code, request.opaque, exc_info=error)
    return response_to(request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
