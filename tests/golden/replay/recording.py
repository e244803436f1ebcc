"""Recordings of a real broker (5.5.0): which there are, and in which order they were made.

Each file holds the frames of one scenario. Several scenarios were recorded with one broker, one
after the other, so the state that one leaves is what the next one finds. A :class:`Run` is one life
of that broker. Within it the proxy counted connections, so the order of scenarios is the order of
their connections.

Times are milliseconds since the recording of the scenario began. When that was is told by what the
clients put into their requests: the birth time of a message or the version of a subscription, both
in milliseconds since 1970. Scenarios without either follow their predecessor after ``PAUSE_MS``;
where the only times are those of a subscription made long before, ``BEGAN_MS`` has the time.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.frame import decode_frame

FRAMES: Final = Path(__file__).parents[1] / "data" / "frames"
#: Between two scenarios of which the second does not tell when it began: a Java client starts.
PAUSE_MS: Final = 1_000
#: From the start of the broker to the first request.
START_UP_MS: Final = 5_000
#: The pull that this scenario ends with was held across the beginning of the next one.
BEGAN_MS: Final = {"admin-consumerStatus": 1_794_711_868_000}
#: Times that clients put into requests of these recordings, all of them made within a day.
SENDS: Final = {
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
}
HEART_BEAT: Final = RequestCode.HEART_BEAT
QUERY_MESSAGE: Final = RequestCode.QUERY_MESSAGE
_TIME: Final = re.compile(r"17947\d{8}")


class Frame(msgspec.Struct, kw_only=True, frozen=True):
    """One frame as it passed the recording proxy."""

    scenario: str
    connection: int
    by_fast_port: bool
    time_ms: int
    from_client: bool
    command: Command

    @property
    def is_send(self) -> bool:
        return self.from_client and self.command.code in SENDS

    @property
    def is_asked(self) -> bool:
        """Whether the broker asks something of a client, or tells it something."""
        return not self.from_client and not self.command.is_response

    @property
    def key(self) -> tuple[int, int]:
        """What a request and its answer have in common, within a run."""
        return self.connection, self.command.opaque


class Scenario:
    """One file: the frames between clients and the broker, in order."""

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def frames(self) -> list[Frame]:
        frames = list(self._read())
        places = {
            frame.key: (frame.command.ext or {}).get("msgId", "")
            for frame in frames
            if frame.command.is_response and not frame.from_client
        }
        # Sends that were under way together are put into the order in which they were stored.
        for index in range(len(frames) - 1):
            pair = frames[index : index + 2]
            if all(frame.is_send and frame.key in places for frame in pair):
                swapped = places[pair[0].key] > places[pair[1].key]
                frames[index : index + 2] = reversed(pair) if swapped else pair
        return frames

    def _read(self) -> Iterator[Frame]:
        for text in (FRAMES / f"{self.name}.jsonl").read_text().splitlines():
            line = json.loads(text)
            if line["link"].startswith("client-broker"):
                yield Frame(
                    scenario=self.name,
                    connection=line["conn"],
                    by_fast_port=line["link"] == "client-broker-vip",
                    time_ms=line["t_ms"],
                    from_client=line["dir"] == "c2s",
                    command=decode_frame(base64.b64decode(line["raw"])),
                )

    @property
    def requests(self) -> list[Frame]:
        return [each for each in self.frames if each.from_client and not each.command.is_response]

    def began_ms(self) -> int | None:
        """When the recording began, as far as its requests tell."""
        if self.name in BEGAN_MS:
            return BEGAN_MS[self.name]
        told = [
            int(time) - frame.time_ms
            for frame in self.requests
            if frame.command.code != QUERY_MESSAGE  # asks up to a time in the future
            for time in _TIME.findall(_text_of(frame.command))
        ]
        return max(told, default=None)


def _text_of(request: Command) -> str:
    """Header fields of sends and pulls, the body of a heartbeat."""
    body = (request.body or b"") if request.code == HEART_BEAT else b""
    return " ".join([*(request.ext or {}).values(), body.decode()])


class Run(msgspec.Struct, kw_only=True, frozen=True):
    """One life of the recorded broker."""

    name: str
    #: Recorded requests that have a recorded answer.
    answer_count: int
    scenarios: tuple[str, ...]
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    #: When it began, if its first scenario does not tell.
    began_ms: int | None = None
    #: What clients had sent before a scenario without being recorded.
    unrecorded: dict[str, list[Frame]] = msgspec.field(default_factory=dict)

    def start_ms(self) -> int:
        """Before the first request, and before what was not recorded."""
        first_ms = self.began_ms or Scenario(self.scenarios[0]).began_ms()
        assert first_ms is not None
        return first_ms - START_UP_MS


def _sent_before(*names: str, first_queue: int = 1) -> list[Frame]:
    """The sends of other scenarios, which clients had repeated: to two queues in turn."""
    sends = [frame for name in names for frame in Scenario(name).requests if frame.is_send]
    return [
        msgspec.structs.replace(
            frame,
            connection=-frame.connection,
            command=_changed(frame.command, e=str((first_queue + index) % 2)),
        )
        for index, frame in enumerate(sends)
    ]


def _changed(command: Command, body: bytes | None = None, **ext: str) -> Command:
    return msgspec.structs.replace(
        command, ext={**(command.ext or {}), **ext}, body=body or command.body
    )


def _client_that_stays() -> list[Frame]:
    """A consumer and a producer who came between two recordings, by their later heartbeats."""
    beats = [
        frame
        for frame in Scenario("admin-consumerStatus").requests
        if frame.command.code == HEART_BEAT
    ]
    sent = Scenario("query").requests[0]
    assert len(beats) == 2
    assert sent.is_send
    fields = {"a": "golden_hold_pg", "e": "1", "i": "TAGS\x01TagA\x02"}
    message = _changed(sent.command, b"hold", **fields)
    return [*beats, msgspec.structs.replace(beats[1], command=message)]


RUNS: Final = (
    Run(
        name="clients and tools",
        answer_count=384,
        scenarios=(
            "send-sync", "send-autocreate", "send-async", "send-oneway", "send-batch",
            "send-delay", "send-compressed", "send-ordered", "send-acl-signed", "transaction",
            "pull", "binary-send-pull", "push-consumer", "orderly-consumer",
            "broadcast-consumer", "lite-pull-consumer", "sql-consumer", "heartbeat-v2",
            "pop-consumer", "request-reply", "errors", "admin-updateTopic", "admin-topicList-c",
            "admin-topicStatus", "admin-clusterList", "admin-brokerStatus",
            "admin-consumerProgress", "admin-updateSubGroup", "admin-resetOffsetByTime",
            "admin-queryMsgByKey", "admin-queryMsgByUniqueKey", "admin-queryMsgByOffset",
            "admin-statsAll", "admin-getBrokerConfig", "admin-updateBrokerConfig",
            "admin-deleteTopic",
        ),
    ),
    Run(
        name="a client that stays",
        answer_count=38,
        unrecorded={
            "query": _sent_before("send-sync", first_queue=0),
            "admin-consumerConnection": _client_that_stays(),
        },
        scenarios=(
            "query", "admin-queryMsgById", "admin-consumerConnection",
            "admin-producerConnection", "admin-consumerStatus", "admin-resetOffsetByTime-live",
        ),
    ),
    Run(
        name="binary headers",
        answer_count=27,
        scenarios=("binary-both-sides", "binary-server-json-client"),
        settings={"rocketmq.serialize.type": "ROCKETMQ"},
    ),
    Run(
        name="a slave",
        answer_count=29,
        scenarios=("slave-sync",),
        unrecorded={"slave-sync": _sent_before("send-sync", "send-delay")},
        began_ms=1_794_711_599_476,
    ),
)  # fmt: skip

#: Files without a request to a broker: asked of the name server (``test_namesrv_replay``) or, the
#: last one, a stream that has no requests.
WITHOUT_BROKER: Final = {
    "acting-master", "acting-master-new-calls", "admin-getNamesrvConfig", "admin-topicList",
    "admin-topicRoute", "binary-broker-registration", "broker-registration", "route",
    "route-versions", "slave-registration", "ha-stream",
}  # fmt: skip
