"""Messages by key and by place."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from tests.unit.broker.stored import Stored, bodies_of, stored


async def query(world: Stored, key: str, **ext: str) -> Command:
    fields = {
        "topic": "T", "key": key, "maxNum": "10", "beginTimestamp": "0",
        "endTimestamp": "9999999999999", **ext,
    }  # fmt: skip
    return await world.call(RequestCode.QUERY_MESSAGE, fields)


async def test_by_key_unique_key_and_tag(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        for number in range(5):
            properties = f"KEYS\x01common k{number}\x02UNIQ_KEY\x01U{number}\x02TAGS\x01Q\x02"
            await world.send(body=b"m%d" % number, properties=properties)
        answer = await query(world, "k3")
        assert (answer.code, answer.remark, bodies_of(answer)) == (0, None, [b"m3"])
        assert answer.ext == {
            "indexLastUpdateTimestamp": str(world.clock.now_ms()),
            "indexLastUpdatePhyoffset": str(world.records("T")[-1].log_offset),
        }
        assert len(bodies_of(await query(world, "common", maxNum="2"))) == 2
        unique = await query(world, "U4", _UNIQUE_KEY_QUERY="true", maxNum="0")
        assert bodies_of(unique) == [b"m4"]
        assert len(bodies_of(await query(world, "Q", indexType="T"))) == 5
        assert len(bodies_of(await query(world, "common", indexType="K"))) == 5


async def test_nothing_found(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send(properties="KEYS\x01k\x02")
        for answer in (await query(world, "nope"), await query(world, "k", endTimestamp="5")):
            assert (answer.code, answer.body) == (22, None)
            assert answer.remark == "can not find message, maybe time range not correct"
            assert answer.ext == {
                "indexLastUpdateTimestamp": "0",
                "indexLastUpdatePhyoffset": "0",
            }


@pytest.mark.spec("store.12.18")
async def test_a_range_of_time_that_ends_before_the_message(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send(properties="KEYS\x01k\x02")
        stored_ms = world.records("T")[0].store_timestamp
        answer = await query(world, "k", endTimestamp=str(stored_ms - 1))
        assert (answer.code, answer.body) == (22, None)
        answer = await query(world, "k", endTimestamp=str(stored_ms))
        assert (answer.code, len(bodies_of(answer))) == (0, 1)
        later = {"beginTimestamp": str(stored_ms + 1000)}
        assert (await query(world, "k", **later)).code == 22


async def test_by_place(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send(body=b"first")
        await world.send(body=b"second")
        place = world.records("T")[1].log_offset
        found = await world.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place)})
        assert (found.code, found.ext, bodies_of(found)) == (0, None, [b"second"])
        for offset in (1, 999_999_999, -1):
            missing = await world.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
            assert (missing.code, missing.ext) == (1, None)
            assert missing.remark == f"can not find message by the offset, {offset}"
