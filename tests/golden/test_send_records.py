"""What recorded sends and replies leave in the log of a real broker (5.5.0), and in ours.

``timer/commitlog.bin`` is the log of the broker that answered the recordings. Each recorded send is
sent to our broker, and the record must be the one in that log: every field, body and property, and
the length in bytes. Different are store time, place in the log, the port of the client, and the
order of the properties. Inner batches are compared with those of ``store-basic``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from skylark.wire.command import Command
from skylark.wire.frame import decode_frame
from skylark.wire.message import MessageRecord, iter_records
from skylark.wire.properties import encode_properties
from tests.golden.replay.recording import FRAMES
from tests.golden.test_records import plain
from tests.unit.broker.stored import CALL_TIMEOUT_S, Stored, stored

DATA = FRAMES.parent
#: The broker of the recordings advertised this address; the records show it.
RECORDED = {"brokerIP1": "127.0.0.2", "listenPort": "20911", "enablePropertyFilter": "true"}
SENDS = {10, 310, 320}
REPLIES = {324, 325}
#: Scenario -> messages that are compared.
SCENARIOS = {
    "send-sync": 4,
    "send-autocreate": 1,
    "send-async": 3,
    "send-oneway": 2,
    "send-batch": 3,
    "send-delay": 1,  # its other message is one for the timer wheel
    "send-compressed": 3,
    "send-ordered": 4,
    "send-acl-signed": 2,
    "binary-send-pull": 4,
    "push-consumer": 4,
    "pop-consumer": 8,
    "request-reply": 2,
}


def recorded(scenario: str, codes: set[int]) -> list[tuple[Command, Command | None]]:
    """Requests to the broker and their answers; None where there is none."""
    lines = [json.loads(line) for line in (FRAMES / f"{scenario}.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["link"].startswith("client-broker")]
    answers = {(line["conn"], line["opaque"]): line for line in lines if line["response"]}
    return [
        (_command(line), None if answer is None else _command(answer))
        for line in lines
        if not line["response"] and line["code"] in codes
        for answer in [answers.get((line["conn"], line["opaque"]))]
    ]


def _command(line: dict[str, str]) -> Command:
    return decode_frame(base64.b64decode(line["raw"]))


def by_unique_id(records: Iterable[MessageRecord]) -> dict[str, MessageRecord]:
    """The first record of each message."""
    found: dict[str, MessageRecord] = {}
    for record in records:
        found.setdefault(record.properties.get("UNIQ_KEY", ""), record)
    return found


def essence(record: MessageRecord) -> dict[str, object]:
    """All of a record that must be the same."""
    fields = msgspec.structs.asdict(record)
    for name in ("store_timestamp", "queue_offset", "log_offset", "raw_properties", "_parsed"):
        del fields[name]
    return {
        **fields,
        "born_host": record.born_host[:4],
        "properties": sorted(record.properties.items()),
    }


async def replay(world: Stored, request: Command, answer: Command | None) -> None:
    if answer is None:
        await world.client.oneway(world.address, request)
        await world.clock.drain()
    else:
        await world.client.call(world.address, request, CALL_TIMEOUT_S)


def is_timed(request: Command) -> bool:
    return "TIMER_" in (request.ext or {}).get("i", "")


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_recorded_sends_become_the_same_records(scenario: str, tmp_path: Path) -> None:
    theirs = by_unique_id(iter_records((DATA / "timer" / "commitlog.bin").read_bytes()))
    async with stored(tmp_path, **RECORDED) as world:
        for request, answer in recorded(scenario, SENDS | REPLIES):
            if not is_timed(request):
                await replay(world, request, answer)
        end = world.features.store.log.max_offset
    ours = by_unique_id(iter_records(first_log_file(tmp_path)[:end]))
    assert len(ours) == SCENARIOS[scenario]
    for unique_id, record in ours.items():
        assert essence(record) == essence(theirs[unique_id])


def first_log_file(root: Path) -> bytes:
    return min((root / "store" / "commitlog").iterdir()).read_bytes()


async def test_inner_batches_become_the_same_records(tmp_path: Path) -> None:
    theirs = [r for r in plain("store-basic").values() if r.topic == "GoldenBatchCq"]
    assert [record.properties["INNER_NUM"] for record in theirs] == ["4", "2"]
    added = {"INNER_BASE", "INNER_NUM", "MSG_REGION", "TRACE_ON", "CLUSTER"}
    async with stored(tmp_path, brokerIP1="127.0.0.1", listenPort="20911") as world:
        world.add_topic("GoldenBatchCq", 1, attributes={"+queue.type": "BatchCQ"})
        for record in theirs:
            given = {k: v for k, v in record.properties.items() if k not in added}
            answer = await world.send(
                "GoldenBatchCq",
                body=record.body,
                properties=encode_properties(given),
                code=320,
                m="true",
                g=str(record.born_timestamp),
            )
            assert answer.code == 0
        ours = world.records("GoldenBatchCq")
    assert [essence(record) for record in ours] == [essence(record) for record in theirs]
    assert [record.queue_offset for record in ours] == [0, 4]
