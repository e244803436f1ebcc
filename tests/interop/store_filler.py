"""A store filled by Skylark with every kind of record that a broker writes, and its config files.

``python -m tests.interop.store_filler ROOT PORT [SIZE RATE]`` puts plain messages as fast as it
can, or RATE of SIZE bytes per second, and prints one JSON line for each, until it is killed.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from skylark.store.config_files import (
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    SUBSCRIPTION_GROUPS,
    TOPICS,
    ConfigFiles,
)
from skylark.store.config_tables import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupTable,
)
from skylark.store.files import OsFileSystem
from skylark.store.store_results import PutResult
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.compress import compress_body, compression_flags
from skylark.wire.layout import (
    FLAG_COMPRESSED,
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_PREPARED,
    FLAG_TRANSACTION_ROLLBACK,
)
from skylark.wire.message import pack_host
from tests.interop.stores import OurStore

GROUP = "ours_group"
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OPERATIONS = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
RETRY, DLQ = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
#: Topics with the number of their queues.
OUR_TOPICS = {"OursPlain": 4, "OursDelay": 1, "OursTx": 1, RETRY: 1, DLQ: 1}
#: Where the group stands in OursPlain.
OUR_OFFSETS = {0: 5, 1: 7, 2: 0, 3: 1}
DELAY_LEVELS = (1, 17, 18)

_ids = count(1)


@dataclass
class Filled:
    """The results of all puts, in order."""

    results: list[PutResult] = field(default_factory=list)

    @property
    def record_count(self) -> int:
        return sum(result.message_count for result in self.results)

    @property
    def visible_count(self) -> int:
        """Records that a consumer can read: all but the two of the old transaction types."""
        return self.record_count - 2


def fill(store: OurStore, round_name: str, plain_count: int = 2000) -> Filled:
    """Put messages of every kind; further rounds continue where the last one ended."""
    random_bytes = random.Random(round_name).randbytes
    filled = Filled()
    done = filled.results.append
    for number in range(plain_count):
        size = 4000 if number % 7 == 0 else 100 + number % 500
        properties = _properties(round_name, f"plain-{number}", tag=f"Tag{number % 5}")
        done(store.put("OursPlain", number % 4, random_bytes(size), properties, flag=number))
    done(store.put("OursPlain", 0, random_bytes(700_000), _properties(round_name, "long")))
    done(store.put("OursPlain", 1, "你好 😀".encode(), {"UNIQ_KEY": _unique_id(), "名": "値 🚀"}))
    done(store.put("OursPlain", 2, b"no properties", {}))
    born_host = pack_host("::1", 40_001)
    done(store.put("OursPlain", 3, b"v6", _properties(round_name, "v6"), born_host=born_host))
    _fill_batches(store, round_name, filled)
    _fill_compressed(store, round_name, filled)
    _fill_delayed(store, round_name, filled)
    _fill_retries(store, round_name, filled)
    _fill_transactions(store, round_name, filled)
    return filled


def _unique_id() -> str:
    return f"7F000001{next(_ids):024X}"


def _properties(round_name: str, key: str, tag: str = "TagA") -> dict[str, str]:
    return {
        "KEYS": f"{round_name}-{key} all",
        "UNIQ_KEY": _unique_id(),
        "CLUSTER": "DefaultCluster",
        "WAIT": "true",
        "TAGS": tag,
    }


def _fill_batches(store: OurStore, round_name: str, filled: Filled) -> None:
    for number in range(5):
        parts = [
            (b"part %d" % part, _properties(round_name, f"batch-{number}-{part}"))
            for part in range(10)
        ]
        filled.results.append(store.put_batch("OursPlain", number % 4, parts))


def _fill_compressed(store: OurStore, round_name: str, filled: Filled) -> None:
    for kind in (1, 2, 3):  # LZ4, zstd, zlib
        body = compress_body(b"the same words again and again. " * 400, kind)
        properties = _properties(round_name, f"compressed-{kind}")
        sys_flag = FLAG_COMPRESSED | compression_flags(kind)
        filled.results.append(store.put("OursPlain", 0, body, properties, sys_flag=sys_flag))


def _fill_delayed(store: OurStore, round_name: str, filled: Filled) -> None:
    """Two delivered and two pending messages of level 1, and pending ones of high levels."""
    for number, level in enumerate([1, 1, 1, 1, 17, 18]):
        properties = _properties(round_name, f"delay-{number}")
        properties |= {"DELAY": str(level), "REAL_TOPIC": "OursDelay", "REAL_QID": "0"}
        filled.results.append(store.put(SCHEDULE, level - 1, b"delayed", properties))
        if number < 2:
            filled.results.append(store.put("OursDelay", 0, b"delayed", properties))


def _fill_retries(store: OurStore, round_name: str, filled: Filled) -> None:
    for topic in (RETRY, DLQ):
        properties = _properties(round_name, f"again-{topic[1]}")
        properties |= {"RETRY_TOPIC": "OursPlain", "ORIGIN_MESSAGE_ID": _unique_id()}
        filled.results.append(store.put(topic, 0, b"once more", properties, reconsume_times=2))


def _fill_transactions(store: OurStore, round_name: str, filled: Filled) -> None:
    """A committed message, a pending one, and records of the old transaction types."""
    for key in ("committed", "pending"):
        properties = _properties(round_name, key)
        properties |= {"TRAN_MSG": "true", "PGROUP": "ours_producer"}
        properties |= {"REAL_TOPIC": "OursTx", "REAL_QID": "0"}
        half = store.put(HALF, 0, b"half", properties)
        filled.results.append(half)
        if key == "pending":
            continue
        filled.results += [
            store.put(
                *("OursTx", 0, b"half", {**properties, "TRAN_PREPARED_QUEUE_OFFSET": "0"}),
                sys_flag=FLAG_TRANSACTION_COMMIT,
                prepared_transaction_offset=half.log_offset,
            ),
            store.put(OPERATIONS, 0, b"%d," % half.queue_offset, {"TAGS": "d"}),
        ]
    for kind in (FLAG_TRANSACTION_PREPARED, FLAG_TRANSACTION_ROLLBACK):
        properties = _properties(round_name, f"kind-{kind}")
        filled.results.append(store.put("OursTx", 0, b"unseen", properties, sys_flag=kind))


def write_config(root: Path) -> None:
    """The tables of a broker that has these topics and this group."""
    config = ConfigFiles(OsFileSystem(), root / "config")
    add_topics(root)
    groups = {GROUP: SubscriptionGroupConfig(group_name=GROUP, retry_max_times=3)}
    config.save(SUBSCRIPTION_GROUPS, SubscriptionGroupTable(subscription_group_table=groups))
    offsets = {f"OursPlain@{GROUP}": dict(OUR_OFFSETS)}
    config.save(CONSUMER_OFFSETS, ConsumerOffsetTable(offset_table=offsets))
    config.save(DELAY_OFFSETS, DelayOffsetTable(offset_table={1: 2}))


def add_topics(root: Path) -> None:
    """Our topics beside those that a broker already has."""
    config = ConfigFiles(OsFileSystem(), root / "config")
    table = config.load(TOPICS)
    for name, queues in OUR_TOPICS.items():
        table.topic_config_table[name] = TopicConfig(
            topic_name=name, read_queue_nums=queues, write_queue_nums=queues
        )
    config.save(TOPICS, table)


def endless(store: OurStore, size: int = 300, rate: int = 0) -> Iterator[dict[str, object]]:
    """Put plain messages for ever; what was acknowledged, one by one."""
    random_bytes = random.Random(0).randbytes
    owner = store.owner
    begin = owner.monotonic()
    for number in count():
        due = begin + number / rate if rate else begin
        while owner.monotonic() < due:
            owner.turn()
        body = random_bytes(size + number % 600)
        properties = _properties("endless", f"plain-{number}", tag=f"Tag{number % 5}")
        result = store.put("OursPlain", number % 4, body, properties)
        yield {
            "topic": "OursPlain",
            "queueId": number % 4,
            "queueOffset": result.queue_offset,
            "commitLogOffset": result.log_offset,
            "uniqueId": properties["UNIQ_KEY"],
        }


def main(root: Path, port: int, *pace: int) -> None:
    write_config(root)
    with OurStore(root, port) as store:
        for acknowledged in endless(store, *pace):
            sys.stdout.write(json.dumps(acknowledged) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
