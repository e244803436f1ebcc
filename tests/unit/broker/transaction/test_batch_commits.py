"""The quick way to commit stores what the other one stores, and leaves to it what it should."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylark.broker.transaction.batch_commits import PlainCommits
from skylark.store.store_results import PutResult
from skylark.wire.end_halves_body import HalfPlace
from tests.unit.broker.transaction.halves import Shop, shop
from tests.unit.broker.transaction.test_half_batches import end, part, sent, unique_id


class Watched(PlainCommits):
    """Counts what was done the quick way; ``off`` does nothing that way."""

    off = False
    quick = 0

    def commit(self, places: Sequence[HalfPlace]) -> PutResult | None:
        result = None if Watched.off else super().commit(places)
        Watched.quick += result.message_count if result else 0
        return result


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.broker.transaction.half_batches.PlainCommits", Watched)
    monkeypatch.setattr(Watched, "off", False)
    monkeypatch.setattr(Watched, "quick", 0)


def everything(world: Shop) -> list[dict[str, Any]]:
    """All final messages, with all fields; properties in any order."""
    found = []
    for record in world.records("T", 1):
        fields = {name: getattr(record, name) for name in record.__struct_fields__}
        del fields["raw_properties"], fields["_parsed"], fields["magic"]
        found.append(fields | {"properties": record.properties})
    counts, stats = world.transactions.counts, world.graph.stats
    found.append({"committed": counts.committed["T"], "waiting": counts.waiting["T"]})
    found.append({"puts": stats.topic_puts["T"].count, "size": stats.topic_puts["T"].size})
    return found


async def run(world: Shop) -> list[dict[str, Any]]:
    parts = [part(1, "KEYS\x01a b\x02"), part(2), part(3, "REAL\x01x\x02DELAYED\x01y\x02")]
    places = await sent(world, *parts)
    assert await end(world, places) == [0, 0, 0]
    assert await end(world, places) == [0, 0, 0]
    await world.rounds()
    assert world.op_bodies() == [b"0,1,2,"]
    return everything(world)


async def test_both_ways_store_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shop(tmp_path / "quick") as world:
        quick = await run(world)
        assert Watched.quick == 3
    monkeypatch.setattr(Watched, "off", True)
    async with shop(tmp_path / "slow") as world:
        assert await run(world) == quick
    assert Watched.quick == 3


async def test_one_by_one_halves_may_be_plain_too(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        plain = await world.producer.send(unique_id(1), CHECK_IMMUNITY_TIME_IN_SECONDS="900")
        delayed = await world.producer.send(
            unique_id(2), CHECK_IMMUNITY_TIME_IN_SECONDS="900", DELAY="1"
        )
        mortal = await world.producer.send(unique_id(3))
        places = [HalfPlace(*msgspec.structs.astuple(each)) for each in (plain, delayed, mortal)]
        assert await end(world, places) == [0, 0, 0]
        assert Watched.quick == 1
        assert len(world.bodies()) == 2  # the delayed one comes later
        await world.clock.advance(seconds=2)
        assert len(world.bodies()) == 3


async def test_a_half_with_copies_takes_the_other_way(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        (place,) = await sent(world, part(1))
        await world.rounds(32)  # 960 s: it is asked about, so it has a copy
        assert world.producer.questions
        assert await end(world, [place]) == [604]
        asked = world.producer.asked()
        assert (await world.producer.end(asked, check=True)).code == 0
        assert await end(world, [place]) == [0]
        assert Watched.quick == 0
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
async def test_what_is_wrong_is_left_to_the_other_way(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    async with shop(tmp_path) as world:
        (place,) = await sent(world, part(1))
        assert await end(world, [place._replace(**change)]) == [1]
        assert await end(world, [place], group="other") == [1]
        assert Watched.quick == 0
        assert world.bodies() == []


async def test_checksums_of_properties_are_made_anew(tmp_path: Path) -> None:
    async with shop(tmp_path, enabledAppendPropCRC="true") as world:
        assert await end(world, await sent(world, part(1))) == [0]
        assert Watched.quick == 0
        assert world.bodies() == [b"m1"]


async def test_each_counts_once_in_whatever_order_they_are_named(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        early = await sent(world, part(1), part(2))
        await world.clock.advance(seconds=1)
        late = await sent(world, part(3), part(4))
        named = [early[0], early[0], late[1], early[1], late[0], late[1]]
        assert await end(world, named) == [0] * 6
        assert world.bodies() == [b"m1", b"m4", b"m2", b"m3"]
        assert Watched.quick == 4
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
        assert Watched.quick == 9
        flags = [record.flag for record in world.records("T", 1)]
        assert flags == [8, *range(8)]
