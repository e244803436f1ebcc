"""Requests of one code that came together: handled in one go, and each treated as if it was alone.

Sent is by one write, which arrives in one piece; requests are told apart by their opaque.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from skylark.core.errors import BrokerError, SystemBusyError
from skylark.net.connection import Connection
from skylark.net.dispatch import (
    LATER,
    REMARK_LENGTH_MAX,
    Answer,
    Dispatcher,
    Interceptor,
    NoAnswerError,
)
from skylark.net.limits import NetLimits
from skylark.net.server import RemotingServer
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.codes import V5_3_1
from skylark.wire.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    SERIALIZE_BINARY,
    SERIALIZE_JSON,
    Command,
    response_to,
)
from skylark.wire.command_codec import ShapedResponse
from skylark.wire.frame import FrameBuffer, encode_frame

RUN, OTHER_RUN, LONE, LATE = 1, 2, 3, 4
PORT = 9876


class Peer(asyncio.Protocol):
    """Keeps the answers, in order."""

    def __init__(self) -> None:
        self.answers: list[Command] = []
        self._frames = FrameBuffer()

    def data_received(self, data: bytes) -> None:
        self.answers += self._frames.feed(data)


class World:
    """A server whose handlers note how requests came to them, and one client of it."""

    def __init__(
        self, interceptors: Iterable[Interceptor], limits: NetLimits, serialize_type: int
    ) -> None:
        self.clock = VirtualClock()
        self.network = MemoryNetwork(clock=self.clock)
        #: The requests that were handled, those that were handled together in one list.
        self.runs: list[list[int]] = []
        #: Whether answers could have been given as frames, for each run.
        self.takes_frames: list[bool] = []
        self.held: list[Command] = []
        self.answers_by_frames = False
        #: What the handlers answer with.
        self.answer: Callable[[Connection, Command], Answer | ShapedResponse] = (
            lambda _connection, request: response_to(request, 0, body=str(request.opaque).encode())
        )
        self.dispatcher = Dispatcher(interceptors)
        for code in (RUN, OTHER_RUN):
            self.dispatcher.add_hot(code, self._one, run=self._together)
        self.dispatcher.add_hot(LONE, self._one)
        self.dispatcher.add_hot(LATE, self._hold, run=self._hold_every_second)
        self.server = RemotingServer(
            self.dispatcher,
            self.network,
            self.clock,
            limits=limits,
            serialize_type=serialize_type,
        )
        self.peer = Peer()

    def _one(self, connection: Connection, request: Command) -> Answer | ShapedResponse:
        self.runs.append([request.opaque])
        return self.answer(connection, request)

    def _together(
        self, connection: Connection, requests: list[Command]
    ) -> Sequence[Answer | ShapedResponse | bytes]:
        as_frames = connection.takes_frames
        self.runs.append([request.opaque for request in requests])
        self.takes_frames.append(as_frames)
        answers = [self.answer(connection, request) for request in requests]
        if not (as_frames and self.answers_by_frames):
            return answers
        return [
            encode_frame(answer) if isinstance(answer, Command) else answer for answer in answers
        ]

    def _hold(self, _connection: Connection, request: Command) -> Answer:
        self.held.append(request)
        return LATER

    def _hold_every_second(self, connection: Connection, requests: list[Command]) -> list[Answer]:
        self.runs.append([request.opaque for request in requests])
        return [
            self._hold(connection, request) if request.opaque % 2 else response_to(request, 0)
            for request in requests
        ]

    @property
    def seen(self) -> list[int]:
        """All requests that were handled, in order."""
        return [opaque for run in self.runs for opaque in run]

    @property
    def connection(self) -> Connection:
        (connection,) = self.server.connections
        return connection

    def receive(self, *requests: Command) -> None:
        """Let the server read these at once."""
        self.connection.data_received(b"".join(map(encode_frame, requests)))

    async def ask(self, *requests: Command) -> list[Command]:
        """The answers to requests that arrive together."""
        self.receive(*requests)
        await self.clock.drain()
        answers, self.peer.answers = self.peer.answers, []
        return answers


@asynccontextmanager
async def running(
    *interceptors: Interceptor, serialize_type: int = SERIALIZE_JSON, **limits: int
) -> AsyncIterator[World]:
    world = World(interceptors, NetLimits(**limits), serialize_type)
    await world.server.start("127.0.0.1", PORT)
    transport, _ = await world.network.connect(
        lambda: world.peer, "127.0.0.1", PORT, timeout_s=1, clock=world.clock
    )
    await world.clock.drain()
    try:
        yield world
    finally:
        transport.close()
        await world.clock.drain()
        await world.server.stop()


def requests(count: int, code: int = RUN) -> list[Command]:
    return [Command(code=code, opaque=number) for number in range(count)]


def opaques(answers: Iterable[Command]) -> list[int]:
    return [answer.opaque for answer in answers]


# ---- what makes a run ----------------------------------------------------------------------------


async def test_requests_that_came_together_are_handled_together_in_order() -> None:
    async with running() as world:
        answers = await world.ask(*requests(5))
        assert world.runs == [[0, 1, 2, 3, 4]]
        assert opaques(answers) == [0, 1, 2, 3, 4]
        assert [answer.body for answer in answers] == [b"0", b"1", b"2", b"3", b"4"]
        assert all(answer.is_response for answer in answers)


async def test_requests_that_came_one_by_one_are_handled_one_by_one() -> None:
    async with running() as world:
        for number in range(3):
            (answer,) = await world.ask(Command(code=RUN, opaque=number))
            assert (answer.code, answer.opaque) == (0, number)
        assert world.runs == [[0], [1], [2]]


async def test_a_run_is_no_longer_than_a_write() -> None:
    async with running(frames_per_write_max=4) as world:
        assert opaques(await world.ask(*requests(11))) == list(range(11))
        assert world.runs == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


async def test_other_codes_split_runs() -> None:
    codes = [RUN, RUN, LONE, RUN, RUN, OTHER_RUN, OTHER_RUN, LONE, LONE, RUN]
    async with running() as world:
        sent = [Command(code=code, opaque=number) for number, code in enumerate(codes)]
        assert opaques(await world.ask(*sent)) == list(range(10))
        # Two of the codes have one handler for runs.
        assert world.runs == [[0, 1], [2], [3, 4, 5, 6], [7], [8], [9]]


async def test_after_a_turn_with_runs_somebody_is_told() -> None:
    async with running() as world:
        told: list[int] = []
        world.dispatcher.after_runs = told.append
        await world.ask(*requests(5, LONE))
        assert told == []
        await world.ask(Command(code=RUN, opaque=1), *requests(2, LONE))
        await world.ask(*requests(3))
        assert told == [1, 3]


async def test_a_response_among_requests_is_no_request() -> None:
    async with running() as world:
        call = world.connection.call(Command(code=LONE), 10)
        opaque = (await world.ask())[0].opaque
        first, second, third, fourth = (Command(code=RUN, opaque=number) for number in range(4))
        settling = Command(code=RUN, opaque=opaque, flag=FLAG_RESPONSE, body=b"answer")
        answers = await world.ask(first, second, settling, third, fourth)
        assert world.seen == [0, 1, 2, 3]
        assert opaques(answers) == [0, 1, 2, 3]
        assert (await call).body == b"answer"


# ---- answers -------------------------------------------------------------------------------------


async def test_one_way_requests_and_silent_handlers_get_no_answer() -> None:
    def answer(_connection: Connection, request: Command) -> Answer:
        return None if request.opaque == 3 else response_to(request, 0)

    async with running() as world:
        world.answer = answer
        sent = requests(6)
        sent[1].flag = sent[5].flag = FLAG_ONEWAY
        assert opaques(await world.ask(*sent)) == [0, 2, 4]
        assert world.runs == [[0, 1, 2, 3, 4, 5]]


async def test_answers_that_come_later_count_as_work_until_they_come() -> None:
    async with running() as world:
        sent = [Command(code=LATE, opaque=number, body=bytes(1000)) for number in range(4)]
        assert opaques(await world.ask(*sent)) == [0, 2]
        assert world.runs == [[0, 1, 2, 3]]
        assert world.connection.held_size == 2000
        for request in reversed(world.held):
            world.connection.answer(request, response_to(request, 0, body=b"later"))
        answers = await world.ask()
        assert [(answer.opaque, answer.body) for answer in answers] == [
            (3, b"later"),
            (1, b"later"),
        ]
        assert world.connection.held_size == 0


async def test_an_answer_may_be_there_before_the_run_is_through() -> None:
    def answer(connection: Connection, request: Command) -> Answer:
        connection.answer(request, response_to(request, 0, body=b"early"))
        return LATER

    async with running() as world:
        world.answer = answer
        sent = [Command(code=RUN, opaque=number, body=bytes(1000)) for number in range(3)]
        assert [answer.body for answer in await world.ask(*sent)] == [b"early"] * 3
        assert world.connection.held_size == 0


async def test_long_remarks_are_cut_in_a_run_as_well() -> None:
    async with running() as world:
        world.answer = lambda _connection, request: response_to(request, 1, "x" * 20_000)
        for answer in await world.ask(*requests(2)):
            assert answer.remark == f"{'x' * REMARK_LENGTH_MAX}... (20000 characters)"


async def test_answers_may_be_frames_already() -> None:
    async with running(Alike()) as world:
        world.answers_by_frames = True
        sent = requests(5)
        sent[3].flag = FLAG_ONEWAY
        answers = await world.ask(*sent)
        assert world.takes_frames == [True]
        assert [(answer.opaque, answer.body) for answer in answers] == [
            (0, b"0"),
            (1, b"1"),
            (2, b"2"),
            (4, b"4"),
        ]
        world.connection.close()
        world.receive(*requests(2))
        await world.clock.drain()
        assert len(world.runs) == 1


async def test_frames_leave_in_portions_as_well() -> None:
    async with running(frames_per_write_max=2) as world:
        world.answers_by_frames = True
        size = world.connection.bytes_out
        assert opaques(await world.ask(*requests(5))) == list(range(5))
        assert world.takes_frames == [True] * 3
        assert world.connection.bytes_out > size


async def test_answers_are_no_frames_where_somebody_wants_to_see_them() -> None:
    watching = Watching()
    async with running(Alike(), watching) as world:
        world.answers_by_frames = True
        await world.ask(*requests(3))
        assert world.takes_frames == [False]
        assert watching.afters == [(0, 0), (1, 0), (2, 0)]


async def test_answers_are_no_frames_where_headers_are_binary() -> None:
    async with running(serialize_type=SERIALIZE_BINARY) as world:
        world.answers_by_frames = True
        answers = await world.ask(*requests(3))
        assert world.takes_frames == [False]
        assert [answer.serialize_type for answer in answers] == [SERIALIZE_BINARY] * 3


async def test_an_answer_that_cannot_be_written_does_not_touch_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def answer(_connection: Connection, request: Command) -> Answer:
        return response_to(request, 0, ext={"k": "\udcff" if request.opaque == 1 else "v"})

    async with running() as world:
        world.answer = answer
        with caplog.at_level(logging.ERROR):
            answers = await world.ask(*requests(3))
        assert [(answer.opaque, answer.code) for answer in answers] == [(0, 0), (1, 1), (2, 0)]
        assert len(caplog.records) == 1


# ---- interceptors --------------------------------------------------------------------------------


class Watching:
    """Sees requests one by one, and does to some what it is told to."""

    def __init__(self, **actions: int) -> None:
        self._actions = {opaque: action for action, opaque in actions.items()}
        self.befores: list[int] = []
        self.afters: list[tuple[int, int | None]] = []

    def before(self, _connection: Connection, request: Command) -> Command | None:
        self.befores.append(request.opaque)
        match self._actions.get(request.opaque):
            case "answer":
                return response_to(request, 7, "answered by me")
            case "take_over":
                raise NoAnswerError
            case "refuse":
                raise BrokerError("not you", code=16)
            case "fail":
                raise ZeroDivisionError("no such luck")
        return None

    def after(
        self, _connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        self.afters.append((request.opaque, None if response is None else response.code))
        return response


class Alike(Watching):
    """The same, but what holds for one holds for all."""

    alike = True


async def test_an_interceptor_sees_each_request_of_a_run_once() -> None:
    watching = Watching()
    async with running(watching) as world:
        await world.ask(*requests(4))
        assert world.runs == [[0, 1, 2, 3]]
        assert watching.befores == [0, 1, 2, 3]
        assert watching.afters == [(0, 0), (1, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize("kinds", [[Watching], [Alike, Watching], [Watching, Alike]])
async def test_an_interceptor_may_pick_requests_out_of_a_run(
    kinds: list[type[Watching]], caplog: pytest.LogCaptureFixture
) -> None:
    actions = {"answer": 1, "take_over": 2, "refuse": 4, "fail": 5}
    interceptors = [kind(**({} if kind is Alike else actions)) for kind in kinds]
    async with running(*interceptors) as world:
        with caplog.at_level(logging.ERROR):
            answers = await world.ask(*requests(7))
        assert world.runs == [[0, 3, 6]]
        found = sorted((answer.opaque, answer.code, answer.remark) for answer in answers)
        assert found == [
            (0, 0, None),
            (1, 7, "answered by me"),
            (3, 0, None),
            (4, 16, "not you"),
            (5, 1, "ZeroDivisionError: no such luck"),
            (6, 0, None),
        ]
        ends = [(0, 0), (1, 7), (2, None), (3, 0), (4, 16), (5, 1), (6, 0)]
        for interceptor in interceptors:
            assert sorted(interceptor.afters, key=lambda end: end[0]) == ends
        picking = interceptors[kinds.index(Watching)]
        assert picking.befores == list(range(7))
        assert len(caplog.records) == 1


async def test_where_an_interceptor_picks_all_no_handler_is_asked() -> None:
    class Refusing(Watching):
        def before(self, _connection: Connection, request: Command) -> Command | None:
            raise BrokerError("nobody", code=16)

    async with running(Refusing()) as world:
        assert [answer.code for answer in await world.ask(*requests(3))] == [16] * 3
        assert world.runs == []


async def test_an_interceptor_may_change_each_answer_of_a_run() -> None:
    class Changing(Watching):
        def after(
            self, _connection: Connection, request: Command, response: Command | None
        ) -> Command | None:
            if request.opaque == 1:
                return None
            return response_to(request, 0, body=b"changed")

    async with running(Changing()) as world:
        answers = await world.ask(*requests(3))
        assert [(answer.opaque, answer.body) for answer in answers] == [
            (0, b"changed"),
            (2, b"changed"),
        ]


async def test_an_answer_that_comes_later_passes_the_interceptors_when_it_comes() -> None:
    for interceptor in (Watching(), Alike()):
        async with running(interceptor) as world:
            await world.ask(*requests(3, LATE))
            assert 1 not in dict(interceptor.afters)
            (request,) = world.held
            world.connection.answer(request, response_to(request, 10))
            (answer,) = await world.ask()
            assert (answer.opaque, answer.code) == (1, 10)
            assert interceptor.afters[-1] == (1, 10)


async def test_where_all_are_judged_alike_the_first_of_a_run_is_judged() -> None:
    alike = [Alike(), Alike()]
    async with running(*alike, frames_per_write_max=3) as world:
        assert opaques(await world.ask(*requests(8))) == list(range(8))
        assert world.runs == [[0, 1, 2], [3, 4, 5], [6, 7]]
        for interceptor in alike:
            assert interceptor.befores == [0, 3, 6]
        await world.ask(Command(code=RUN, opaque=8))
        assert alike[0].befores == [0, 3, 6, 8]


@pytest.mark.parametrize("action", ["answer", "take_over", "refuse"])
async def test_after_a_refusal_all_of_the_run_are_judged(action: str) -> None:
    alike = Alike(**{action: 0})
    async with running(alike) as world:
        answers = await world.ask(*requests(4))
        assert alike.befores == [0, 1, 2, 3]
        assert world.runs == [[1, 2, 3]]
        refused = {"answer": 7, "take_over": None, "refuse": 16}[action]
        found = {answer.opaque: answer.code for answer in answers}
        assert found == {**({0: refused} if refused else {}), 1: 0, 2: 0, 3: 0}
        assert alike.afters[0] == (0, refused)


async def test_a_run_is_refused_as_a_whole_while_the_interceptor_refuses() -> None:
    class Busy(Alike):
        def before(self, _connection: Connection, request: Command) -> Command | None:
            self.befores.append(request.opaque)
            raise SystemBusyError("too busy")

    busy = Busy()
    async with running(busy) as world:
        answers = await world.ask(*requests(3))
        assert [(answer.opaque, answer.code) for answer in answers] == [(0, 2), (1, 2), (2, 2)]
        assert (busy.befores, world.runs) == ([0, 1, 2], [])


async def test_interceptors_that_are_set_later_see_every_request() -> None:
    watching = Watching(refuse=2)
    async with running() as world:
        world.dispatcher.interceptors = (watching,)
        await world.ask(*requests(4))
        assert watching.befores == [0, 1, 2, 3]
        assert watching.afters == [(2, 16), (0, 0), (1, 0), (3, 0)]


async def test_a_cancelled_future_in_an_interceptor_is_answered_like_any_error() -> None:
    class Cancelled(Watching):
        def before(self, connection: Connection, request: Command) -> Command | None:
            if request.opaque == 1:
                raise asyncio.CancelledError
            return None

    async with running(Cancelled()) as world:
        alone = await world.ask(Command(code=RUN, opaque=1))
        assert [answer.code for answer in alone] == [1]
        answers = await world.ask(*requests(3))
        assert {answer.opaque: answer.code for answer in answers} == {0: 0, 1: 1, 2: 0}


# ---- shutting down, back-pressure, closing -------------------------------------------------------


async def test_clients_that_know_go_away_get_it_while_the_server_shuts_down() -> None:
    watching = Alike()
    async with running(watching) as world:
        world.dispatcher.shutting_down = True
        sent = requests(4)
        for request, version in zip(sent, (0, 1, 0, 2), strict=True):
            request.version = V5_3_1 + version
        found = {answer.opaque: answer.code for answer in await world.ask(*sent)}
        assert found == {0: 0, 1: 1500, 2: 0, 3: 1500}
        assert world.runs == [[0, 2]]
        assert watching.befores == [0, 2]


async def test_what_does_not_fit_into_a_turn_waits_for_the_next() -> None:
    async with running(frames_per_turn_max=6, frames_per_write_max=4) as world:
        world.receive(*requests(20))
        assert world.runs == [[0, 1, 2, 3], [4, 5, 6, 7]]  # a run is not cut to fit
        await asyncio.sleep(0)
        assert world.seen == list(range(16))
        await world.clock.drain()
        assert world.seen == list(range(20))
        assert opaques(world.peer.answers) == list(range(20))


async def test_what_comes_behind_a_backlog_does_not_overtake_it() -> None:
    async with running(frames_per_turn_max=3) as world:
        world.receive(*requests(5))
        world.receive(*(Command(code=RUN, opaque=number) for number in range(5, 8)))
        assert world.seen == [0, 1, 2]
        await world.clock.drain()
        assert world.seen == list(range(8))


async def test_no_further_run_begins_while_too_much_is_at_work() -> None:
    async with running(task_bytes_per_connection_max=2500, frames_per_write_max=4) as world:
        sent = [Command(code=LATE, opaque=2 * number + 1, body=bytes(1000)) for number in range(12)]
        world.receive(*sent)
        assert world.runs == [[1, 3, 5, 7]]
        await world.clock.drain()
        assert len(world.held) == 4
        answered = 0
        while world.held:
            request = world.held.pop(0)
            world.connection.answer(request, response_to(request, 0))
            answered += 1
            await world.clock.drain()
            assert len(world.held) <= 2 + 4  # what is below the limit, and one run
        assert answered == 12
        assert sorted(opaques(world.peer.answers)) == [request.opaque for request in sent]


async def test_nothing_more_is_handled_once_a_run_has_closed_the_connection() -> None:
    def answer(connection: Connection, request: Command) -> Answer:
        if request.opaque == 4:
            connection.close()
        return response_to(request, 0)

    async with running(frames_per_write_max=3) as world:
        world.answer = answer
        world.receive(*requests(12))
        await world.clock.drain()
        assert world.runs == [[0, 1, 2], [3, 4, 5]]
        assert opaques(world.peer.answers) == [0, 1, 2]
        assert not world.server.connections


async def test_answers_leave_in_portions_while_later_runs_are_still_worked_on() -> None:
    written_after: list[int] = []
    async with running(frames_per_write_max=4) as world:
        transport = world.connection._link.transport
        assert transport is not None
        write = transport.write

        def noted(data: Any) -> None:
            written_after.append(len(world.seen))
            write(data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transport, "write", noted)
            await world.ask(*requests(10))
        assert written_after == [4, 8, 10]
