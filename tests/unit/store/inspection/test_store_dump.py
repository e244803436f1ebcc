"""Dumps of the stores of a real Java broker equal what another one served from them."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skylark.core.clock import SystemClock
from skylark.core.hashing import index_key_hash, java_hash
from skylark.store.files import OsFileSystem
from skylark.store.inspection.log_walk import Hole
from skylark.store.inspection.store_directory import FileSizes, survey
from skylark.store.inspection.store_dump import (
    BodyForm,
    Item,
    Selection,
    dump_index,
    dump_queues,
    dump_records,
)
from skylark.wire.layout import FLAG_COMPRESSED
from skylark.wire.message import RecordFault
from tests.unit.store.crash_store import CrashStore

GOLDEN = Path(__file__).parents[3] / "golden" / "data"
FILES = OsFileSystem()
EVERYTHING = Selection()


def expected(name: str) -> list[dict[str, Any]]:
    text = gzip.decompress((GOLDEN / "expected" / f"{name}.jsonl.gz").read_bytes())
    return [json.loads(line) for line in text.splitlines()]


def records(root: Path, selection: Selection = EVERYTHING, **options: Any) -> list[Item]:
    surveyed = survey(FILES, root, FileSizes())
    return list(dump_records(FILES, surveyed, selection, **options))


def place(item: Item) -> tuple[object, ...]:
    return item["topic"], item["queueId"], item["queueOffset"]


@pytest.mark.parametrize("name", ["store-basic", "store-crashed", "store-torn"])
def test_records_are_those_that_java_served(name: str) -> None:
    dumped = {place(item): item for item in records(GOLDEN / name)}
    served = [it for it in expected(f"{name}.messages") if it["msgId"] is not None]
    assert len(served) >= 431
    for message in served:
        item = dumped[place(message)]
        shared = item.keys() & message.keys()
        assert len(shared) == 17
        assert {key: item[key] for key in shared} == {key: message[key] for key in shared}
        assert item["storedBodyLength"] == message["storedBodyLen"]
    # what Java shows as the parts of inner batches are two records
    assert len(dumped) == len(served) + (2 if name == "store-basic" else 0)


def test_records_come_in_the_order_of_the_log() -> None:
    offsets = [item["commitLogOffset"] for item in records(GOLDEN / "store-basic")]
    assert offsets == sorted(offsets)  # type: ignore[type-var]
    assert len(offsets) == 433


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        (Selection(topic="GoldenB"), 350),
        (Selection(topic="GoldenA", queue_id=2), 9),
        (Selection(topic="GoldenB", first=100, end=110), 10),
        (Selection(queue_id=17), 2),
        (Selection(topic="GoldenB", first=1000), 0),
        (Selection(topic="Golden"), 0),
        (Selection(topic="NoSuchTopic"), 0),
    ],
)
def test_a_selection_of_records(selection: Selection, count: int) -> None:
    root = GOLDEN / "store-basic"
    chosen = records(root, selection)
    assert len(chosen) == count
    assert chosen == [item for item in records(root) if item in chosen]
    entries = list(dump_queues(FILES, survey(FILES, root, FileSizes()), selection))
    assert sorted(map(str, map(place, entries))) == sorted(map(str, map(place, chosen)))


def test_bodies_in_three_forms() -> None:
    root = GOLDEN / "store-basic"
    inflated = [it for it in records(root) if int(str(it["sysFlag"])) & FLAG_COMPRESSED]
    assert {len(base64.b64decode(str(it["body"]))) for it in inflated} == {9000}
    texts = records(root, Selection(topic="GoldenTx"), body_form=BodyForm.TEXT)
    assert [it["body"] for it in texts] == ["committed", "committed by check-back"]
    assert all("body" not in it for it in records(root, body_form=BodyForm.NONE))


def test_a_body_that_cannot_be_inflated_is_shown_as_it_is(tmp_path: Path) -> None:
    store = CrashStore(FILES, tmp_path / "own", time=SystemClock())
    store.open()
    store.put("T", 0, b"not compressed at all", sys_flag=FLAG_COMPRESSED)
    store.close()
    (item,) = records(store.root, body_form=BodyForm.TEXT)
    assert item["body"] == "not compressed at all"
    assert "zlib" in str(item["bodyError"])


def test_damage_is_skipped_and_reported(tmp_path: Path) -> None:
    root = Path(shutil.copytree(GOLDEN / "store-basic", tmp_path / "store"))
    path = root / "commitlog/00000000000000032768"
    content = bytearray(path.read_bytes())
    content[4:8] = b"gone"
    path.write_bytes(content)
    holes: list[Hole] = []
    found = records(root, on_hole=holes.append)
    assert len(found) == 432
    assert [(hole.log_offset, hole.fault) for hole in holes] == [(32768, RecordFault.BAD_MAGIC)]
    assert records(root) == found


def test_nothing_behind_the_end_is_dumped() -> None:
    holes: list[Hole] = []
    found = records(GOLDEN / "store-torn", on_hole=holes.append)
    assert (len(found), holes) == (443, [])


@pytest.mark.parametrize("name", ["store-basic", "store-crashed"])
def test_queue_entries_are_those_that_java_showed(name: str) -> None:
    surveyed = survey(FILES, GOLDEN / name, FileSizes())
    dumped = [it for it in dump_queues(FILES, surveyed, EVERYTHING) if "messageCount" not in it]
    java = [
        {
            "topic": it["topic"],
            "queueId": it["queueId"],
            "queueOffset": it["queueOffset"],
            "commitLogOffset": it["physicOffset"],
            "size": it["size"],
            "tagsCode": it["tagsCode"],
        }
        for it in expected(f"{name}.cq")
    ]
    assert sorted(dumped, key=str) == sorted(java, key=str)


def test_entries_of_batch_queues() -> None:
    surveyed = survey(FILES, GOLDEN / "store-basic", FileSizes())
    entries = list(dump_queues(FILES, surveyed, Selection(topic="GoldenBatchCq")))
    assert [(it["queueOffset"], it["messageCount"], it["size"]) for it in entries] == [
        (0, 4, 827),
        (4, 2, 547),
    ]


def test_index_entries_point_to_the_records_of_their_keys() -> None:
    surveyed = survey(FILES, GOLDEN / "store-basic", FileSizes())
    entries = list(dump_index(FILES, surveyed))
    assert len(entries) == 1316
    by_offset: dict[object, Any] = {it["commitLogOffset"]: it for it in records(surveyed.root)}
    for entry in entries:
        record = by_offset[entry["commitLogOffset"]]
        properties = record["properties"]
        words = [properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split(" ")]
        words.append(f"T#{properties.get('TAGS')}")
        hashes = {index_key_hash(java_hash(f"{record['topic']}#{word}")) for word in words}
        assert entry["keyHash"] in hashes
        assert isinstance(entry["storeTimestamp"], int)
        assert -1000 < entry["storeTimestamp"] - record["storeTimestamp"] <= 1000
    first = entries[0]
    assert (first["file"], first["entry"]) == (surveyed.index_files[0].name, 1)
    assert (first["commitLogOffset"], first["previous"]) == (0, 0)


def test_a_dump_that_is_not_read_to_its_end_lets_go_of_its_files() -> None:
    surveyed = survey(FILES, GOLDEN / "store-basic", FileSizes())
    dumps: list[Iterator[Item]] = [
        dump_records(FILES, surveyed, EVERYTHING),
        dump_queues(FILES, surveyed, EVERYTHING),
        dump_index(FILES, surveyed),
    ]
    before = open_files()
    for dump in dumps:
        next(dump)
    assert open_files() > before
    dumps.clear()
    del dump
    assert open_files() == before


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))
