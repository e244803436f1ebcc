"""Batches as producers send them, and what is in the log afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from skylark.wire.batch import BatchMessage, encode_batch
from skylark.wire.codes import RequestCode
from skylark.wire.message import unwrap_record
from tests.unit.broker.stored import bodies_of, records_of, stored

EXT: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
INNER: Final = {"+queue.type": "BatchCQ"}


@pytest.mark.spec("remoting.10.19")
@pytest.mark.serves(RequestCode.SEND_BATCH_MESSAGE)
async def test_a_batch_becomes_one_record_per_message(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send()
        parts = [BatchMessage(b"m%d" % i * (i + 1), b"TAGS\x01A%d\x02" % i, i) for i in range(3)]
        answer = await world.send(
            body=encode_batch(parts),
            properties="UNIQ_KEY\x01B\x02",
            code=RequestCode.SEND_BATCH_MESSAGE,
            m="true",
        )
        assert answer.code == 0
        found = world.records("T")[1:]
        assert [record.body for record in found] == [part.body for part in parts]
        assert [record.raw_properties for record in found] == [part.properties for part in parts]
        assert [record.flag for record in found] == [0, 1, 2]
        assert answer.ext == {
            **EXT,
            "msgId": ",".join(record.offset_id for record in found),
            "queueId": "0",
            "queueOffset": "1",
            "transactionId": "B",
        }


async def test_ids_of_a_batch_with_checksums_of_properties(tmp_path: Path) -> None:
    async with stored(tmp_path, enabledAppendPropCRC="true") as world:
        parts = [BatchMessage(b"a", b"k\x01v"), BatchMessage(b"b", b"k\x01v\x02")]
        answer = await world.send(body=encode_batch(parts), m="true")
        ids = [record.offset_id for record in world.records("T")]
        assert (answer.ext or {})["msgId"] == ",".join(ids)
        assert len(ids) == 2


async def test_illegal_batches(tmp_path: Path) -> None:
    body = encode_batch([BatchMessage(b"m")])
    async with stored(tmp_path) as world:
        retry = await world.send("%RETRY%G", body=body, m="true")
        assert (retry.code, retry.ext) == (13, EXT)
        delayed = await world.send(body=body, m="true", properties="DELAY\x011\x02")
        assert delayed.code == 13
        for transaction in ("4", "8", "12"):
            assert (await world.send(body=body, m="true", f=transaction)).code == 13


@pytest.mark.spec("remoting.10.19")
@pytest.mark.serves(RequestCode.SEND_BATCH_MESSAGE)
async def test_the_header_flag_makes_a_batch_not_the_code(tmp_path: Path) -> None:
    body = encode_batch([BatchMessage(b"a"), BatchMessage(b"b")])
    async with stored(tmp_path) as world:
        split = await world.send(body=body, m="true")
        assert split.code == 0
        assert (split.ext or {})["msgId"].count(",") == 1
        whole = await world.send(body=body, code=RequestCode.SEND_BATCH_MESSAGE)
        assert "," not in (whole.ext or {})["msgId"]
        assert [record.body for record in world.records("T")] == [b"a", b"b", body]


# --- topics of type BatchCQ ---


async def test_an_inner_batch_is_one_record(tmp_path: Path) -> None:
    parts = [BatchMessage(b"m%d" % i, b"TAGS\x01A\x02") for i in range(3)]
    body = encode_batch(parts)
    async with stored(tmp_path) as world:
        world.add_topic("Inner", 1, attributes=INNER)
        for number in range(2):
            properties = f"UNIQ_KEY\x01U{number}\x02INNER_NUM\x0199\x02INNER_BASE\x017\x02"
            answer = await world.send(
                "Inner",
                body=body,
                properties=properties,
                code=RequestCode.SEND_BATCH_MESSAGE,
                m="true",
            )
            record = world.records("Inner")[number]
            assert answer.ext == {
                **EXT,
                "msgId": record.offset_id,
                "queueId": "0",
                "queueOffset": str(3 * number),
                "transactionId": f"U{number}",
                "batchUniqId": f"U{number}",
            }
            assert record.body == body
            assert record.sys_flag == 1 << 6 | 1 << 7
            assert record.properties == {
                "UNIQ_KEY": f"U{number}",
                "INNER_BASE": str(3 * number),
                "INNER_NUM": "3",
                "CLUSTER": "DefaultCluster",
                **EXT,
            }
        assert world.features.stats.broker_stats.topic_puts["Inner"].count == 6
        assert world.features.stats.store_stats.put_count == 6
        pulled = await world.pull(3, topic="Inner")
        assert (pulled.code, (pulled.ext or {})["nextBeginOffset"]) == (0, "6")
        assert bodies_of(pulled) == [body]
        (record,) = records_of(pulled.body)
        assert [(r.body, r.queue_offset) for r in unwrap_record(record)] == [
            (b"m0", 3), (b"m1", 4), (b"m2", 5),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("properties", "batch", "hint"),
    [
        (
            "UNIQ_KEY\x01U\x02",
            "false",
            "topic Inner is of type BatchCQ, which accepts batches only",
        ),
        (
            "a\x01b\x02",
            "true",
            "a batch to topic Inner, which is of type BatchCQ, needs a UNIQ_KEY",
        ),
        ("UNIQ_KEY\x01U\x02DELAY\x011\x02", "true", ""),
    ],
)
async def test_messages_that_a_batch_cq_topic_refuses(
    tmp_path: Path, properties: str, batch: str, hint: str
) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("Inner", 1, attributes=INNER)
        body = encode_batch([BatchMessage(b"m")])
        answer = await world.send("Inner", body=body, properties=properties, m=batch)
        assert (answer.code, answer.ext) == (13, EXT)
        assert (answer.remark or "").startswith("the message is illegal, maybe msg body")
        assert (answer.remark or "").endswith(hint)
        assert world.records("Inner") == []


async def test_inner_batches_survive_a_restart(tmp_path: Path) -> None:
    body = encode_batch([BatchMessage(b"a"), BatchMessage(b"b")])
    for number in range(2):
        async with stored(tmp_path) as world:
            if number == 0:
                world.add_topic("Inner", 1, attributes=INNER)
            answer = await world.send("Inner", body=body, properties="UNIQ_KEY\x01U\x02", m="true")
            assert (answer.ext or {})["queueOffset"] == str(2 * number)
