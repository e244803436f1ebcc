"""Recorded conversations with a real name server (5.5.0), held again with ours.

Every request that clients, brokers and tools sent to the name server in the golden files is sent
to ours, byte by byte as recorded and in the recorded order; each answer must be the same frame,
header and body, as the one recorded. What is different, and why:

* ``haServerAddr``: the recording proxy changed its port, which is undone first (``PROXIED``).
* Lists of topics: Java's order is that of its hash table, ours is sorted; compared as sets.
* Settings (319): ours has a few keys more; each recorded line must be among ours, but for those
  that the set-up decides (``SET_UP_KEYS``).

The recordings hold frames only. What else the name server knew at that time is made up for:
topics announced in frames that were left out or by another run (``UNRECORDED_TOPICS``), topics not
yet made when a recorded answer did not know them, and connections that ended (``ENDED``).
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from skylark.namesrv.app import NameServer
from skylark.wire.bodies.common_body import TopicList
from skylark.wire.bodies.route_body import QueueData, TopicRouteData
from skylark.wire.command import Command, SerializeType
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.frame import decode_frame, encode_frame
from tests.support.namesrv_peers import (
    RawPeer,
    open_peer,
    raw_peer,
    request,
    serving,
    until_connections,
)

FRAMES = Path(__file__).parent / "data" / "frames"

#: Conversations of the brokers themselves; the others need brokers that registered before.
REGISTRATIONS = {
    "acting-master",
    "acting-master-new-calls",
    "binary-broker-registration",
    "broker-registration",
    "slave-registration",
}
BINARY_SERVERS = {"binary-both-sides", "binary-broker-registration", "binary-server-json-client"}
SET_UP_KEYS = {"configStorePath", "kvConfigPath", "listenPort", "rocketmqHome"}
PROXIED = ("127.0.0.2:20942", "127.0.0.2:20912")
UNRECORDED_TOPICS = ("%RETRY%golden_hold_cg", "%RETRY%golden_pop_cg_FramePop")
#: Scenario -> time of a request -> connection that had ended by then.
ENDED = {"acting-master-new-calls": {120_772: 3, 136_145: 4}}


class Exchange:
    """One recorded request and what was answered, if anything."""

    def __init__(self, line: dict[str, Any], answer: dict[str, Any] | None) -> None:
        self.connection: int = line["conn"]
        self.time_ms: int = line["t_ms"]
        self.raw = base64.b64decode(line["raw"])
        self.request = decode_frame(self.raw)
        self.answer = None if answer is None else decode_frame(base64.b64decode(answer["raw"]))


def recorded(scenario: str) -> list[Exchange]:
    lines = [json.loads(line) for line in (FRAMES / f"{scenario}.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["link"].endswith("-namesrv")]
    answers = {(line["conn"], line["opaque"]): line for line in lines if line["response"]}
    return [
        Exchange(line, answers.get((line["conn"], line["opaque"])))
        for line in lines
        if not line["response"]
    ]


SCENARIOS = {
    path.stem: found
    for path in sorted(FRAMES.glob("*.jsonl"))
    if path.stem != "ha-stream" and (found := recorded(path.stem))
}


def expected(answer: Command) -> Command:
    """The recorded answer without what the recording did to it."""
    if answer.ext and answer.ext.get("haServerAddr") == PROXIED[0]:
        answer.ext["haServerAddr"] = PROXIED[1]
        answer.ext_entries = None
    return answer


def topic_set(answer: Command) -> set[str]:
    return set(decode_body(TopicList, answer.body or b"").topic_list)


def setting_lines(answer: Command) -> set[str]:
    lines = (answer.body or b"").decode().splitlines()
    return {line for line in lines if line.partition("=")[0] not in SET_UP_KEYS}


class Rehearsal:
    """Brings our name server to what the real one knew when it answered."""

    def __init__(self, broker: RawPeer, scenario: str) -> None:
        self._broker = broker
        source = "binary-broker-registration" if "binary" in scenario else "broker-registration"
        self._registrations = [each.raw for each in SCENARIOS[source] if each.request.code == 103]

    async def prepare(self, exchange: Exchange) -> None:
        if exchange.request.code not in (105, 106, 206) or exchange.answer is None:
            return
        for raw in self._registrations:
            await self._broker.send_bytes(raw)
            assert (await self._broker.receive()).code == 0
        queues = QueueData(broker_name="broker-a", read_queue_nums=1, write_queue_nums=1, perm=6)
        for topic in UNRECORDED_TOPICS:
            body = encode_body(TopicRouteData(queue_datas=[queues]))
            await self._broker.call(request(217, {"topic": topic}, body))
        for topic in await self._topics_too_many(exchange):
            await self._broker.call(request(216, {"topic": topic}))

    async def _topics_too_many(self, exchange: Exchange) -> set[str]:
        assert exchange.answer is not None
        if exchange.answer.code == 17:
            return {(exchange.request.ext or {}).get("topic", "")}
        if exchange.request.code == 206:
            return topic_set(await self._broker.call(request(206))) - topic_set(exchange.answer)
        return set()


async def replay(server: NameServer, scenario: str, rehearsal: Rehearsal | None) -> int:
    """Hold the conversation; returns how many answers were compared."""
    peers: dict[int, RawPeer] = {}
    compared = 0
    for exchange in SCENARIOS[scenario]:
        ended = ENDED.get(scenario, {}).get(exchange.time_ms)
        if ended is not None:
            await peers.pop(ended).close()
            await until_connections(server, len(peers) + 1)  # one is not of the recording
        if exchange.connection not in peers:
            peers[exchange.connection] = await open_peer(server.address)
        peer = peers[exchange.connection]
        if rehearsal is not None:
            await rehearsal.prepare(exchange)
        await peer.send_bytes(exchange.raw)
        if exchange.request.is_oneway:
            continue
        assert exchange.answer is not None
        compare(exchange.request, await peer.receive(), expected(exchange.answer))
        compared += 1
    for peer in peers.values():
        await peer.close()
    return compared


def compare(asked: Command, got: Command, wanted: Command) -> None:
    if asked.code == 206:
        assert topic_set(got) == topic_set(wanted)
        got.body = wanted.body
    elif asked.code == 319:
        ours, theirs = setting_lines(got), setting_lines(wanted)
        assert len(theirs) == 36
        assert theirs <= ours
        got.body = wanted.body
    assert encode_frame(got) == encode_frame(wanted)


def test_the_recordings_are_here() -> None:
    assert len(SCENARIOS) == 49
    answered = [
        exchange
        for exchanges in SCENARIOS.values()
        for exchange in exchanges
        if exchange.answer is not None
    ]
    assert len(answered) == 404
    codes = {exchange.request.code for exchange in answered}
    assert codes == {101, 103, 104, 105, 106, 206, 216, 319, 901, 9999}


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_our_answers_are_those_recorded(scenario: str) -> None:
    settings: dict[str, Any] = {"support_acting_master": scenario.startswith("acting-master")}
    if scenario in BINARY_SERVERS:
        settings["serialize_type"] = SerializeType.ROCKETMQ
    answered = sum(each.answer is not None for each in SCENARIOS[scenario])
    async with serving(**settings) as server, raw_peer(server.address) as broker:
        rehearsal = None if scenario in REGISTRATIONS else Rehearsal(broker, scenario)
        assert await replay(server, scenario, rehearsal) == answered
