"""One store directory, used in turn by the Apache broker and by Skylark's store.

Both get the same small files (:data:`SETTINGS`), so that a few hundred messages roll the log, the
queues and the index. :class:`OurStore` is Skylark's store, opened in this process;
:class:`StoreView` is everything that somebody serves from a directory, in the form in which
``StoreReader.java`` prints it, so that both can be compared for equality.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from bench.owner import Owner
from skylark.core.config import load
from skylark.core.hashing import index_key_hash, java_hash
from skylark.store.commit_log import Draft
from skylark.store.config import StoreConfig
from skylark.store.files import OsFileSystem
from skylark.store.inspection.store_directory import FileSizes, survey
from skylark.store.inspection.store_dump import BodyForm, Selection, dump_records, record_item
from skylark.store.message_store import MessageStore
from skylark.store.recovery import RecoveryReport
from skylark.store.store_results import GetStatus, PutResult, PutStatus
from skylark.wire.batch import Batch, BatchMessage
from skylark.wire.layout import FLAG_TRANSACTION_MASK, FLAG_TRANSACTION_ROLLBACK
from skylark.wire.message import (
    MessageRecord,
    inflate_record,
    iter_records,
    pack_host,
    unwrap_record,
)
from skylark.wire.properties import encode_properties
from tests.interop.java import HOST, ApacheBroker, run_program

#: By their Java names; both sides get them.
SETTINGS = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 50 * 20,
    "mapperFileSizeBatchConsumeQueue": 4 * 46,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2_000,
    "fileReservedTime": 720,
}
#: For the Apache broker alone: it does nothing by itself while a test looks, but quickly otherwise.
BROKER_SETTINGS = {
    **SETTINGS,
    "timerWheelEnable": "false",
    "transactionCheckInterval": 3_600_000,
    "transactionTimeOut": 3_600_000,
    "transactionOpBatchInterval": 200,
}

Item = dict[str, Any]
Queue = tuple[str, int]
Place = tuple[str, int, int]  # topic, queue, queue offset
#: Topic, text and kind of a key: "T" for a tag, nothing for KEYS and unique ids.
Key = tuple[str, str, str]
Keys = dict[Key, list[int]]  # log offsets


@dataclass
class StoreView:
    """What is served: bounds of the queues, messages in order of topic, queue and offset."""

    bounds: dict[Queue, tuple[int, int]] = field(default_factory=dict)
    messages: list[Item] = field(default_factory=list)
    keys: Keys = field(default_factory=dict)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)

    def of(self, topic: str) -> list[Item]:
        return [message for message in self.messages if message["topic"] == topic]

    def places(self) -> dict[Place, Item]:
        """The messages by where they are, in order."""
        return {place_of(message): message for message in self.messages}

    def sort(self) -> Self:
        self.messages.sort(key=place_of)
        return self


def place_of(message: Mapping[str, Any]) -> Place:
    """Topic, queue and queue offset of a message."""
    return message["topic"], message["queueId"], message["queueOffset"]


def expected_keys(root: Path) -> Keys:
    """What a query for each key in the log answers: the newest 64 records with its hash."""
    files = OsFileSystem()
    surveyed = survey(files, root, FileSizes())
    by_hash: dict[int, list[int]] = {}
    texts: dict[Key, int] = {}
    for record in dump_records(files, surveyed, Selection(), body_form=BodyForm.NONE):
        item: Item = record
        if item["sysFlag"] & FLAG_TRANSACTION_MASK == FLAG_TRANSACTION_ROLLBACK:
            continue
        properties: Mapping[str, str] = item["properties"]
        words = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
        keys = [(word, "") for word in words] + [(properties.get("TAGS", ""), "T")]
        for word, kind in keys:
            if word:
                text = f"T#{word}" if kind else word
                key_hash = index_key_hash(java_hash(f"{item['topic']}#{text}"))
                texts[item["topic"], word, kind] = key_hash
                by_hash.setdefault(key_hash, []).append(item["commitLogOffset"])
    return {text: sorted(set(by_hash[it]))[-64:] for text, it in texts.items()}


def read_apache(
    broker: ApacheBroker,
    namesrv: str,
    queues: Iterable[Queue],
    *,
    keys: bool = True,
    offsets: Iterable[tuple[str, str, int]] = (),
) -> StoreView:
    """What a running Apache broker serves to Java clients; every key must be answered right."""
    expected = expected_keys(broker.store) if keys else {}
    options: dict[str, str | int] = {
        "namesrv": namesrv,
        "broker": broker.broker_name,
        "address": broker.address,
    }
    rows = {"queues": queues, "keys": expected, "offsets": offsets}
    for name, lines in rows.items():
        path = broker.folder / f"{name}.txt"
        path.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
        options[name] = str(path)
    view = StoreView()
    for record in run_program("StoreReader", options):
        event = record.pop("event")
        topic = str(record["topic"])
        fields: Item = record
        if event == "message":
            view.messages.append(fields)
        elif event == "queue":
            view.bounds[topic, fields["queueId"]] = (fields["min"], fields["max"])
        elif event == "key":
            assert fields["code"] == (0 if fields["offsets"] else 22)
            view.keys[topic, fields["key"], fields["kind"]] = fields["offsets"]
        else:
            view.offsets[fields["group"], topic, fields["queueId"]] = fields["offset"]
    assert view.keys == expected
    print(
        f"\nApache served {len(view.messages)} messages of {len(view.bounds)} queues "
        f"and answered {len(view.keys)} keys"
    )
    return view.sort()


def store_config(root: Path, **settings: object) -> StoreConfig:
    texts = {key: str(value) for key, value in {**SETTINGS, **settings}.items()}
    return load(StoreConfig, {**texts, "storePathRootDir": str(root)})


class OurStore:
    """Skylark's store over a directory, with an owner that is turned by each put."""

    def __init__(self, root: Path, port: int, **settings: object) -> None:
        self._root = root
        self.owner = Owner()
        self.store = MessageStore(
            store_config(root, **settings),
            store_host=pack_host(HOST, port),
            scheduler=self.owner,
            post=self.owner.post,
        )
        self.report: RecoveryReport

    def __enter__(self) -> Self:
        self.report = self.store.open()
        self.store.start()
        index = self.store.index
        assert index is not None
        self.owner.turn_until(lambda: index.behind_from is None)  # after a crash it is made anew
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    # Putting

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: Mapping[str, str],
        **fields: Any,
    ) -> PutResult:
        """Store one message; ``fields`` are those of :class:`Draft`."""
        result = self.store.put(self._draft(topic, queue_id, body, properties, fields))
        assert result.status is PutStatus.PUT_OK
        self.owner.turn()
        return result

    def put_batch(
        self, topic: str, queue_id: int, messages: Sequence[tuple[bytes, Mapping[str, str]]]
    ) -> PutResult:
        """Store messages that were sent as one batch."""
        parts = [
            BatchMessage(flag=0, body=body, properties=encode_properties(properties).encode())
            for body, properties in messages
        ]
        result = self.store.put_batch(self._draft(topic, queue_id, b"", {}, {}), Batch.of(parts))
        assert result.status is PutStatus.PUT_OK
        self.owner.turn()
        return result

    def _draft(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: Mapping[str, str],
        fields: Mapping[str, Any],
    ) -> Draft:
        defaults = {
            "born_timestamp": self.owner.now_ms() - 5,
            "born_host": pack_host("127.0.0.1", 40_000),
        }
        raw = encode_properties(properties).encode()
        return Draft(topic, queue_id, body, raw, **{**defaults, **fields})

    # Reading

    @property
    def queues(self) -> list[Queue]:
        return sorted((queue.topic, queue.queue_id) for queue in self.store.queues)

    def view(self) -> StoreView:
        """Everything that can be read, queue by queue; every key must be answered right."""
        view = StoreView()
        reader = self.store.reader
        for topic, queue_id in self.queues:
            offset = reader.min_offset(topic, queue_id)
            end = reader.max_offset(topic, queue_id)
            view.bounds[topic, queue_id] = (offset, end)
            while offset < end:
                result = reader.get(topic, queue_id, offset, 32)
                assert result.status is GetStatus.FOUND
                content = b"".join(result.views)
                result.release()
                for record in iter_records(content):
                    view.messages += _items(record)
                offset = result.next_offset
        expected = expected_keys(self._root)
        view.keys = {key: self.query(*key) for key in expected}
        assert view.keys == expected
        return view.sort()

    def query(self, topic: str, key: str, kind: str) -> list[int]:
        """Log offsets of the messages with a key."""
        found = self.store.reader.query(topic, key, 64, index_type=kind or None)
        offsets = [record.log_offset for record in iter_records(b"".join(found.views))]
        found.release()
        return offsets


def _items(record: MessageRecord) -> Iterator[Item]:
    """A record as Java's consumer sees it; an inner batch is the messages in it."""
    item = record_item(record, BodyForm.BASE64)
    inflate_record(record)
    parts = unwrap_record(record)
    if parts == [record]:
        yield item
        return
    for part in parts:
        shown = record_item(part, BodyForm.BASE64)
        yield {**shown, "msgId": None, "sysFlag": item["sysFlag"]}
