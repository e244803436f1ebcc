"""Heartbeats recorded from a real cluster lead to the notices and answers of the real broker."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark.broker.api import Peer
from skylark.broker.groups.client_channel import channel_of
from skylark.broker.groups.consumer_table import ConsumerTable, GroupNotice
from skylark.wire.bodies.heartbeat import GetConsumerListByGroupResponseBody, HeartbeatData
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from skylark.wire.frame import decode_frame
from tests.unit.broker.connections import FakeConnection

FRAMES = Path(__file__).parents[3] / "golden" / "data" / "frames"


def recorded(scenario: str) -> Iterator[tuple[int, bool, Command, int]]:
    """Peer number, whether the client sent it, the command, and what a response answers."""
    for text in (FRAMES / f"{scenario}.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line["link"] == "client-broker":
            command = decode_frame(base64.b64decode(line["raw"]))
            yield line["conn"], line["dir"] == "c2s", command, line.get("request_code") or 0


class Replay:
    """Feeds a recording to a table and keeps what the table would have sent."""

    def __init__(self) -> None:
        self.table = ConsumerTable()
        self.connections: dict[int, FakeConnection] = {}
        self.notices: list[tuple[Peer, str]] = []
        self.sub_changed: dict[tuple[int, int], bool] = {}

    def request(self, conn: int, command: Command) -> None:
        connection = self.connections.setdefault(conn, FakeConnection(conn))
        if command.code == RequestCode.HEART_BEAT:
            self._heartbeat(conn, command, connection)
        elif command.code == RequestCode.UNREGISTER_CLIENT:
            group = (command.ext or {}).get("consumerGroup")
            if group is not None:
                for notice in self.table.unregister(group, connection, 0).notices:
                    self._note(notice)

    def _heartbeat(self, conn: int, command: Command, connection: FakeConnection) -> None:
        heartbeat = decode_body(HeartbeatData, command.body or b"")
        results = [
            self.table.heartbeat(
                data,
                channel_of(
                    connection,
                    heartbeat.client_id,
                    language=command.language,
                    version=command.version,
                ),
                0,
                fingerprint=heartbeat.heartbeat_fingerprint,
                without_sub=heartbeat.without_sub,
            )
            for data in heartbeat.consumer_data_set
        ]
        for result in results:
            self._note(result.notice)
        self.sub_changed[conn, command.opaque] = heartbeat.heartbeat_fingerprint == 0 or any(
            result.sub_changed for result in results
        )

    def _note(self, notice: GroupNotice | None) -> None:
        if notice is not None:
            self.notices += [(connection, notice.group) for connection in notice.peers]


@pytest.mark.parametrize(
    ("scenario", "notice_count", "heartbeat_count"),
    [
        ("push-consumer", 4, 9),
        ("heartbeat-v2", 2, 10),
        ("orderly-consumer", 1, 2),
        ("broadcast-consumer", 0, 2),
        ("sql-consumer", 1, 2),
        ("lite-pull-consumer", 1, 1),
    ],
)
def test_notices_and_answers_are_those_of_java(
    scenario: str, notice_count: int, heartbeat_count: int
) -> None:
    replay = Replay()
    java_notices: list[tuple[Peer, str]] = []
    heartbeats = 0
    for conn, from_client, command, request_code in recorded(scenario):
        if from_client and not command.is_response:
            replay.request(conn, command)
        elif command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and command.is_oneway:
            group = (command.ext or {})["consumerGroup"]
            java_notices.append((replay.connections[conn], group))
        elif request_code == RequestCode.HEART_BEAT:
            heartbeats += 1
            expected = (command.ext or {})["IS_SUB_CHANGE"] == "true"
            assert replay.sub_changed[conn, command.opaque] is expected
        elif request_code == RequestCode.GET_CONSUMER_LIST_BY_GROUP and command.body:
            body = decode_body(GetConsumerListByGroupResponseBody, command.body)
            (group_state,) = replay.table.groups()
            assert sorted(group_state.client_ids()) == sorted(body.consumer_id_list)
    assert len(java_notices) == notice_count
    assert heartbeats == heartbeat_count
    key = repr
    assert sorted(replay.notices, key=key) == sorted(java_notices, key=key)
