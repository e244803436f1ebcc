"""Holds a recorded conversation again, with our broker in virtual time.

Requests leave at the recorded times, on one connection of ours for each recorded one. Where a
request names a place in the log (message ids, offsets of half messages), the recorded place is
replaced by ours, known from the answers so far. What our broker asks of a client is answered as the
recorded client did; the decision about a half message that was checked waits for our check. What
was not asked for in time is sent at the end of its scenario.

Answers are looked at when the run is over: a held pull may be answered a little earlier or later
than in the recording, where the machine was busy.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

import msgspec

from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.frame import FrameBuffer, encode_frame
from skylark.wire.message import MessageRecord, iter_records
from tests.golden.replay.body_values import is_records
from tests.golden.replay.recording import PAUSE_MS, Frame, Run, Scenario

CONNECT_TIMEOUT_S: Final = 5.0
#: Longer than any held pull: after it everything that will be answered has been.
LAST_WAIT_S: Final = 30.0
UNRECORDED_OPAQUE: Final = 1_000_000
#: Fields of requests that name a place in the log, by request code.
LOG_OFFSET_FIELDS: Final[dict[int, str]] = {
    RequestCode.VIEW_MESSAGE_BY_ID: "offset",
    RequestCode.CONSUMER_SEND_MSG_BACK: "offset",
}


class Exchange(msgspec.Struct, kw_only=True):
    """A request that was replayed, what the real broker answered and what ours did."""

    scenario: str
    request: Command
    recorded: Command | None = None
    ours: Command | None = None


class Peer(asyncio.Protocol):
    """Our end of one connection, and what its recorded client would answer."""

    def __init__(self) -> None:
        self._frames = FrameBuffer()
        self.transport: asyncio.Transport
        self.answers: dict[int, Command] = {}
        self.asked: list[Command] = []
        self.client_answers: dict[int, list[Command]] = defaultdict(list)
        self.decisions: dict[str, Command] = {}  # id of a half message -> END_TRANSACTION

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for command in self._frames.feed(data):
            if command.is_response:
                assert command.opaque not in self.answers, "answered twice"
                self.answers[command.opaque] = command
            else:
                self.asked.append(command)
                self._answer(command)

    def send(self, command: Command) -> None:
        self.transport.write(encode_frame(command))

    def _answer(self, request: Command) -> None:
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            ext = request.ext or {}
            decision = self.decisions.pop(ext["msgId"], None)
            if decision is not None:
                place = ext["commitLogOffset"], ext["tranStateTableOffset"]
                self.send(with_half_place(decision, *place))
        elif not request.is_oneway:
            answer = self.client_answers[request.code].pop(0)
            self.send(msgspec.structs.replace(answer, opaque=request.opaque))


class Player:
    """Replays one run."""

    def __init__(self, run: Run, clock: VirtualClock, network: MemoryNetwork, port: int) -> None:
        self._run = run
        self._clock = clock
        self._network = network
        self._port = port
        self._peers: dict[int, Peer] = {}
        self._waiting: dict[tuple[int, int], Exchange] = {}
        self._expecting: set[tuple[int, int]] = set()
        self._places = Places()
        self.exchanges: list[Exchange] = []
        #: What the recorded broker asked of its clients, by connection; ``asked``: what ours did.
        self.recorded_asked: dict[int, list[Command]] = defaultdict(list)

    @property
    def asked(self) -> dict[int, list[Command]]:
        return {number: peer.asked for number, peer in self._peers.items()}

    def unexpected_answers(self) -> list[Command]:
        """Answers to one-way requests, or to none."""
        return [
            answer
            for number, peer in self._peers.items()
            for opaque, answer in peer.answers.items()
            if (number, opaque) not in self._expecting
        ]

    async def play(self) -> None:
        scenarios = [Scenario(name) for name in self._run.scenarios]
        for index, scenario in enumerate(scenarios):
            await self._make_up_for(self._run.unrecorded.get(scenario.name, []))
            await self._play_scenario(scenario)
            self._close_all_but(scenarios[index + 1 :] or [scenario])
        await self._clock.advance(LAST_WAIT_S)
        self._settle()

    def _close_all_but(self, scenarios: list[Scenario]) -> None:
        stay = {frame.connection for scenario in scenarios for frame in scenario.frames}
        for number, peer in self._peers.items():
            if number not in stay:
                peer.transport.close()

    async def _make_up_for(self, unrecorded: list[Frame]) -> None:
        for index, frame in enumerate(unrecorded):
            opaque = UNRECORDED_OPAQUE + index
            request = msgspec.structs.replace(frame.command, opaque=opaque)
            peer = await self._send(frame, request)
            assert peer.answers.pop(opaque).code == 0
            peer.asked.clear()

    async def _play_scenario(self, scenario: Scenario) -> None:
        now_ms = self._clock.now_ms()
        began_ms = max(now_ms, scenario.began_ms() or now_ms + PAUSE_MS)
        await self._rehearse(scenario)
        for frame in scenario.frames:
            await self._clock.advance(ms=max(0, began_ms + frame.time_ms - self._clock.now_ms()))
            if not frame.from_client:
                self._hear(frame)
            elif not frame.command.is_response and not _is_decision(frame.command):
                await self._ask(frame)
        for peer in self._peers.values():
            while peer.decisions:
                _, decision = peer.decisions.popitem()
                peer.send(self._places.in_our_log(decision))
        await self._clock.drain()
        self._settle()

    async def _rehearse(self, scenario: Scenario) -> None:
        """Tell our clients what they will answer."""
        asked = {frame.key: frame.command.code for frame in scenario.frames if frame.is_asked}
        for frame in scenario.frames:
            command = frame.command
            if frame.from_client and command.is_response:
                peer = await self._peer(frame)
                peer.client_answers[asked[frame.key]].append(command)
            elif frame.from_client and _is_decision(command):
                peer = await self._peer(frame)
                peer.decisions[(command.ext or {})["msgId"]] = command
                self.exchanges.append(Exchange(scenario=scenario.name, request=command))

    async def _ask(self, frame: Frame) -> None:
        request = self._places.in_our_log(frame.command)
        exchange = Exchange(scenario=frame.scenario, request=request)
        self.exchanges.append(exchange)
        if not request.is_oneway:
            self._waiting[frame.key] = exchange
            self._expecting.add(frame.key)
        await self._send(frame, request)

    async def _send(self, frame: Frame, request: Command) -> Peer:
        peer = await self._peer(frame)
        peer.send(request)
        await self._clock.drain()
        return peer

    def _hear(self, frame: Frame) -> None:
        if frame.is_asked:
            self.recorded_asked[frame.connection].append(frame.command)
        elif frame.key in self._waiting:  # else its request was not recorded
            self._waiting[frame.key].recorded = frame.command
            self._settle()

    def _settle(self) -> None:
        """Bring answers to their requests, and learn from those that have both."""
        for key, exchange in list(self._waiting.items()):
            connection, opaque = key
            exchange.ours = self._peers[connection].answers.get(opaque)
            if exchange.ours is not None and exchange.recorded is not None:
                self._places.learn(exchange.recorded, exchange.ours)
                del self._waiting[key]

    async def _peer(self, frame: Frame) -> Peer:
        peer = self._peers.get(frame.connection)
        if peer is None:
            port = self._port - 2 if frame.by_fast_port else self._port
            _, peer = await self._network.connect(
                Peer, "127.0.0.1", port, timeout_s=CONNECT_TIMEOUT_S, clock=self._clock
            )
            self._peers[frame.connection] = peer
        return peer


class Places:
    """Places in the recorded log, and where the same message stands in ours."""

    def __init__(self) -> None:
        self._log_offsets: dict[int, int] = {}
        #: Id of a message -> where we stored it: place in the log, place in its queue.
        self._stored: dict[str, tuple[str, str]] = {}
        #: Time and revive queue of a recorded pop -> those of ours.
        self._pops: dict[tuple[str, str], tuple[str, str]] = {}

    def learn(self, recorded: Command, ours: Command) -> None:
        theirs, here = recorded.ext or {}, ours.ext or {}
        if "msgId" in theirs and "msgId" in here:
            log_offset = _log_offset(here["msgId"])
            self._log_offsets[_log_offset(theirs["msgId"])] = log_offset
            self._stored[here.get("transactionId", "")] = str(log_offset), here["queueOffset"]
        if "popTime" in theirs and "popTime" in here:
            pop = theirs["popTime"], theirs["reviveQid"]
            self._pops[pop] = here["popTime"], here["reviveQid"]
        if is_records(recorded.body) and is_records(ours.body):
            found = {_place(record): record for record in iter_records(ours.body or b"")}
            for record in iter_records(recorded.body or b""):
                if _place(record) in found:
                    self._log_offsets[record.log_offset] = found[_place(record)].log_offset

    def in_our_log(self, request: Command) -> Command:
        """The request with our places; the same if it names none that is known."""
        ext = request.ext or {}
        if request.code == RequestCode.END_TRANSACTION:
            return with_half_place(request, *self._stored[ext["msgId"]])
        if "extraInfo" in ext:
            start, time, invisible, queue, *rest = ext["extraInfo"].split(" ")
            time, queue = self._pops.get((time, queue), (time, queue))
            handle = " ".join((start, time, invisible, queue, *rest))
            return msgspec.structs.replace(
                request, ext={**ext, "extraInfo": handle}, ext_entries=None
            )
        recorded = ext.get(LOG_OFFSET_FIELDS.get(request.code, ""), "-1")
        if int(recorded) not in self._log_offsets:
            return request
        changed = {LOG_OFFSET_FIELDS[request.code]: str(self._log_offsets[int(recorded)])}
        return msgspec.structs.replace(request, ext={**ext, **changed}, ext_entries=None)


def with_half_place(decision: Command, log_offset: str, queue_offset: str) -> Command:
    place = {"commitLogOffset": log_offset, "tranStateTableOffset": queue_offset}
    return msgspec.structs.replace(decision, ext={**(decision.ext or {}), **place})


def _is_decision(command: Command) -> bool:
    """Whether it decides about a half message that was checked."""
    ext = command.ext or {}
    is_end = command.code == RequestCode.END_TRANSACTION
    return is_end and ext.get("fromTransactionCheck") == "true"


def _log_offset(message_id: str) -> int:
    return int(message_id[-16:], 16)


def _place(record: MessageRecord) -> tuple[str, int, int]:
    return record.topic, record.queue_id, record.queue_offset
