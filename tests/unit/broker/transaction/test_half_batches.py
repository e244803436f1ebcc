"""Many half messages in one request, and what is in the log afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylark.core.hashing import decode_offset_id
from skylark.wire.batch import BatchMessage, encode_batch
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.end_halves_body import HalfPlace, decode_codes, encode_places
from skylark.wire.properties import parse_properties
from tests.unit.broker.stored import stored
from tests.unit.broker.transaction.halves import COMMIT, HALF, OP, ROLLBACK, Shop, killed, shop

COMMON = "PGROUP\x01pg\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01900\x02"
ADDED = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}


def unique_id(number: int) -> str:
    return f"{number:032X}"


def part(number: int, more: str = "", body: bytes | None = None) -> BatchMessage:
    properties = f"WAIT\x01true\x02UNIQ_KEY\x01{unique_id(number)}\x02{more}"
    return BatchMessage(b"m%d" % number if body is None else body, properties.encode(), number)


async def send(
    world: Shop, *parts: BatchMessage, topic: str = "T", common: str = COMMON
) -> Command:
    born = str(world.clock.now_ms())
    body, code = encode_batch(parts), RequestCode.SEND_HALVES
    return await world.send(topic, body, 1, common, code, g=born)


async def sent(world: Shop, *parts: BatchMessage) -> list[HalfPlace]:
    """Send half messages; where they are."""
    return placed(world, await send(world, *parts), *parts)


def placed(world: Shop, answer: Command, *parts: BatchMessage) -> list[HalfPlace]:
    """Where an answer says that half messages are."""
    assert (answer.code, answer.remark) == (0, None)
    ext = answer.ext or {}
    assert ext["queueId"] == "1"
    places = [
        HalfPlace(
            decode_offset_id(offset_id).log_offset,
            int(ext["queueOffset"]) + at,
            parse_properties(part.properties)["UNIQ_KEY"],
        )
        for at, (offset_id, part) in enumerate(zip(ext["msgId"].split(","), parts, strict=True))
    ]
    assert [record.log_offset for record in world.records(HALF)][-len(parts) :] == [
        place.log_offset for place in places
    ]
    return places


async def end(
    world: Shop, places: list[HalfPlace], decision: int = COMMIT, group: str = "pg"
) -> list[int]:
    ext = {"topic": "T", "producerGroup": group, "commitOrRollback": str(decision)}
    answer = await world.call(RequestCode.END_HALVES, ext, encode_places(places))
    assert (answer.code, answer.remark) == (0, None)
    return list(decode_codes(answer.body, len(places)))


@pytest.mark.spec("broker.13.18")
@pytest.mark.serves(RequestCode.SEND_HALVES, RequestCode.END_HALVES)
async def test_half_messages_of_a_batch_are_ordinary_half_messages(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        single = await world.producer.send(
            unique_id(9), CHECK_IMMUNITY_TIME_IN_SECONDS="900", WAIT="true", KEYS="k"
        )
        parts = [part(1, "KEYS\x01k\x02"), part(2)]
        answer = await world.send("T", encode_batch(parts), 1, COMMON, RequestCode.SEND_HALVES)
        places = placed(world, answer, *parts)
        assert [place.queue_offset for place in places] == [1, 2]
        one, two, _ = world.records(HALF)
        assert two.properties == {
            **one.properties, "UNIQ_KEY": unique_id(1), "__transactionId__": unique_id(1),
        }  # fmt: skip
        assert (two.topic, two.queue_id, two.sys_flag, two.flag) == (HALF, 0, 0, 1)
        assert world.bodies() == []
        counts = world.transactions.counts
        assert counts.waiting["T"] == 3

        assert (await world.producer.end(single)).code == 0
        ext = {"topic": "T", "producerGroup": "pg", "commitOrRollback": "8"}
        answer = await world.call(RequestCode.END_HALVES, ext, encode_places(places))
        assert decode_codes(answer.body, 2) == [0, 0]
        assert world.bodies() == [b"x", b"m1", b"m2"]
        first, second, _ = world.records("T", 1)
        assert second.properties == {
            **first.properties, "UNIQ_KEY": unique_id(1), "__transactionId__": unique_id(1),
        }  # fmt: skip
        assert second.properties.items() >= ADDED.items()
        assert (second.sys_flag, second.flag) == (8, 1)
        assert second.prepared_transaction_offset == places[0].log_offset
        assert (counts.committed["T"], counts.waiting["T"]) == (3, 0)


@pytest.mark.spec("spark.9.31")
async def test_a_repeated_end_stores_nothing_even_after_a_crash(tmp_path: Path) -> None:
    async with shop(tmp_path / "one") as world:
        places = await sent(world, *(part(number) for number in range(6)))
        assert await end(world, places[:4]) == [0] * 4
        assert await end(world, places[4:5], ROLLBACK) == [0]
        assert await end(world, places[:4]) == [0] * 4
        assert world.bodies() == [b"m0", b"m1", b"m2", b"m3"]
        left = killed(world, tmp_path / "two")
    async with shop(left) as world:
        assert await end(world, places[:4] + places[5:]) == [0] * 5
        assert await end(world, places[4:5], ROLLBACK) == [0]
        assert world.bodies() == [b"m0", b"m1", b"m2", b"m3", b"m5"]


async def test_the_first_failure_ends_a_request(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        places = await sent(world, *(part(number) for number in range(4)))
        wrong = [places[0], places[1]._replace(unique_id=unique_id(7)), *places[2:]]
        assert await end(world, wrong) == [0, 1]
        assert world.bodies() == [b"m0"]
        assert await end(world, places, group="other") == [1]
        assert await end(world, places[:1], ROLLBACK) == [1]  # it is committed
        assert world.bodies() == [b"m0"]
        ext = {"topic": "T", "producerGroup": "pg", "commitOrRollback": "0"}
        answer = await world.call(RequestCode.END_HALVES, ext, encode_places(places))
        assert answer.code == 1


async def test_a_late_decision_does_not_end_the_request(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        old = await sent(world, part(0))
        await world.clock.advance(seconds=901)
        new = await sent(world, part(1))
        assert await end(world, [*old, *new]) == [604, 0]
        assert world.bodies() == [b"m1"]


async def test_rollbacks_are_stored_before_the_response(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        places = await sent(world, part(0), part(1))
        assert await end(world, places, ROLLBACK) == [0, 0]
        assert b"".join(world.bodies(OP, 0)) == b"0,1,"
        assert world.bodies() == []


@pytest.mark.parametrize(
    "name",
    ["DELAY", "TIMER_DELAY_MS", "TRAN_MSG", "PGROUP", "REAL_TOPIC", "TRAN_PREPARED_QUEUE_OFFSET"],
)
async def test_a_batch_with_a_special_message_is_refused_as_a_whole(
    tmp_path: Path, name: str
) -> None:
    async with shop(tmp_path) as world:
        answer = await send(world, part(0), part(1, f"{name}\x011\x02"))
        assert answer.code == 13
        assert world.records(HALF) == []


@pytest.mark.parametrize("change", ["", "DELAY\x0101\x02", "abcde\x01xyz\x02"])
async def test_messages_that_are_alike_have_the_same_names(tmp_path: Path, change: str) -> None:
    """Of many messages of one size only one is looked at."""
    async with shop(tmp_path) as world:
        parts = [part(number, f"abcde\x01{number:02}\x02") for number in range(40)]
        if change:
            parts[30] = part(30, change)
        if change.startswith("DELAY"):
            assert (await send(world, *parts)).code == 13
            return
        places = await sent(world, *parts)
        assert [record.properties["__transactionId__"] for record in world.records(HALF)] == [
            place.unique_id for place in places
        ]
        assert await end(world, places) == [0] * 40
        assert [record.properties["abcde"] for record in world.records("T", 1)] == [
            parse_properties(each.properties)["abcde"] for each in parts
        ]


async def test_malformed_requests(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        no_id = BatchMessage(b"x", b"KEYS\x01k\x02")
        assert (await send(world, part(0), no_id)).code == 13
        assert (await send(world, part(0), part(1, body=b""))).code == 13
        assert (await send(world, part(0), common="KEYS\x01k\x02")).code == 13
        assert (await send(world, part(0), topic="%RETRY%G")).code != 0
        assert (await send(world)).code == 13
        world.load_topic("C", attributes={"cleanup.policy": "COMPACTION"})
        assert (await send(world, part(0), topic="C")).code == 13
        assert world.records(HALF) == []


async def test_the_total_size_with_common_properties_is_limited(tmp_path: Path) -> None:
    """A hundred times 100 kB would be ten megabytes; more of both, all memory."""
    async with shop(tmp_path) as world:
        parts = [part(number) for number in range(100)]
        long = f"{COMMON}x\x01{'a' * 100_000}\x02"
        answer = await send(world, *parts, common=long)
        assert answer.code == 13
        assert "too large for one request" in (answer.remark or "")
        assert (await send(world, part(0), common=long)).code == 13  # no property is that long
        assert world.records(HALF) == []
        await sent(world, *parts)


async def test_a_broker_that_refuses_transactions(tmp_path: Path) -> None:
    async with shop(tmp_path, rejectTransactionMessage="true") as world:
        assert (await send(world, part(0))).code == 16


async def test_with_checksums_of_properties(tmp_path: Path) -> None:
    async with shop(tmp_path, enabledAppendPropCRC="true") as world:
        places = await sent(world, part(0), part(1, body=b"longer"))
        assert await end(world, places) == [0, 0]
        assert world.bodies() == [b"m0", b"longer"]


async def test_a_slave_refuses(tmp_path: Path) -> None:
    async with stored(tmp_path, brokerRole="SLAVE", brokerId="1") as world:
        ext = {"topic": "T", "producerGroup": "pg", "commitOrRollback": "8"}
        place = HalfPlace(0, 0, unique_id(0))
        answer = await world.call(RequestCode.END_HALVES, ext, encode_places([place]))
        assert answer.code == 11
        halves = await world.send("T", encode_batch([part(0)]), 1, COMMON, RequestCode.SEND_HALVES)
        assert halves.code != 0


async def test_halves_sent_one_by_one_may_be_ended_together(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        plain = await world.producer.send(unique_id(1), CHECK_IMMUNITY_TIME_IN_SECONDS="900")
        delayed = await world.producer.send(
            unique_id(2), CHECK_IMMUNITY_TIME_IN_SECONDS="900", DELAY="1"
        )
        mortal = await world.producer.send(unique_id(3))
        places = [HalfPlace(*msgspec.structs.astuple(each)) for each in (plain, delayed, mortal)]
        assert await end(world, places) == [0, 0, 0]
        assert len(world.bodies()) == 2  # the delayed one comes later
        await world.clock.advance(seconds=2)
        assert len(world.bodies()) == 3


async def test_a_half_with_copies_ends_once(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        (place,) = await sent(world, part(1))
        await world.rounds(32)  # 960 s: it is asked about, so it has a copy
        assert world.producer.check_backs
        assert await end(world, [place]) == [604]
        asked = world.producer.checked()
        assert (await world.producer.end(asked, check=True)).code == 0
        assert await end(world, [place]) == [0]
        assert world.bodies() == [b"m1"]


@pytest.mark.parametrize(
    "change",
    [
        {"log_offset": 1 << 40},
        {"log_offset": 1},
        {"queue_offset": 7},
        {"unique_id": unique_id(5)},
    ],
    ids=str,
)
async def test_a_wrong_place_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    async with shop(tmp_path) as world:
        (place,) = await sent(world, part(1))
        assert await end(world, [place._replace(**change)]) == [1]
        assert await end(world, [place], group="other") == [1]
        assert world.bodies() == []


async def test_checksums_of_properties_are_recomputed(tmp_path: Path) -> None:
    async with shop(tmp_path, enabledAppendPropCRC="true") as world:
        assert await end(world, await sent(world, part(1))) == [0]
        assert world.bodies() == [b"m1"]


async def test_each_decision_counts_once_in_any_order(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        early = await sent(world, part(1), part(2))
        await world.clock.advance(seconds=1)
        late = await sent(world, part(3), part(4))
        named = [early[0], early[0], late[1], early[1], late[0], late[1]]
        assert await end(world, named) == [0] * 6
        assert world.bodies() == [b"m1", b"m4", b"m2", b"m3"]
        await world.rounds()
        assert world.op_bodies() == [b"0,3,1,2,"]


async def test_half_messages_of_several_log_files(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        body = bytes(1 << 20)
        places = []
        for number in range(0, 9, 3):
            places += await sent(world, *(part(number + at, body=body) for at in range(3)))
        assert places[-1].log_offset > 8 << 20 > places[0].log_offset  # a file has 8 MiB
        assert await end(world, [places[8], *places[:8]]) == [0] * 9
        flags = [record.flag for record in world.records("T", 1)]
        assert flags == [8, *range(8)]
