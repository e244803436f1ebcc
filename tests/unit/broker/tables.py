"""Settings, a clock and recorded frames for tests of the broker's tables."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from skylark.broker.config import BrokerConfig, load_broker_config
from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.table_saver import SavedTables, TableSaver
from skylark.broker.topics.topic_table import TopicTable
from skylark.store.config_files import (
    CONSUMER_OFFSETS,
    SUBSCRIPTION_GROUPS,
    TOPICS,
    ConfigFiles,
)
from skylark.wire.command import Command
from skylark.wire.frame import decode_frame

GOLDEN: Final = Path(__file__).parents[2] / "golden" / "data"
NOW_MS: Final = 1_794_710_000_000

#: What the recorded brokers were told, as far as it shows (``frames/admin-getBrokerConfig``).
RECORDED: Final = {
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.2",
    "brokerIP2": "127.0.0.2",
    "brokerName": "broker-a",
    "diskMaxUsedSpaceRatio": "95",
    "enablePropertyFilter": "true",
    "fileReservedTime": "720",
    "listenPort": "20911",
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "60000",
    "mappedFileSizeTimerLog": "1048576",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "namesrvAddr": "127.0.0.3:29876",
    "rocketmqHome": "home",
    "storePathCommitLog": "store/commitlog",
    "storePathRootDir": "store",
    "transactionCheckInterval": "3000",
    "transactionTimeOut": "2000",
}


class SteppingClock:
    """Time that moves when the test says so, without a loop."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


def live_settings(**texts: str) -> LiveSettings:
    """Settings by their Java names; a keyword can name any that is an identifier."""
    given = {"brokerName": "broker-a", "storePathRootDir": "store", **texts}
    return LiveSettings(_config(tuple(given.items())), now_ms=NOW_MS, given=given)


@cache
def _config(given: tuple[tuple[str, str], ...]) -> BrokerConfig:
    return load_broker_config(dict(given))


def recorded(scenario: str, code: int) -> Iterator[tuple[bool, Command]]:
    """Requests of one code and their answers: whether it is the request, and the command."""
    for text in (GOLDEN / "frames" / f"{scenario}.jsonl").read_text().splitlines():
        line = json.loads(text)
        is_request = not line["response"]
        if code == (line["code"] if is_request else line.get("request_code")):
            yield is_request, decode_frame(base64.b64decode(line["raw"]))


def add_tables(
    saver: TableSaver,
    live: LiveSettings,
    topics: TopicTable,
    groups: GroupTable,
    offsets: OffsetTable,
) -> SavedTables:
    """Write topics and groups on change, offsets at intervals, as a broker does."""
    saved = SavedTables(
        topics=saver.on_change(TOPICS, topics.snapshot),
        groups=saver.on_change(SUBSCRIPTION_GROUPS, groups.snapshot),
        offsets=saver.every(
            CONSUMER_OFFSETS,
            offsets.snapshot,
            interval_ms=lambda: live.current.flush_consumer_offset_interval,
            changes=lambda: offsets.change_count,
        ),
    )
    topics.changes.subscribe(lambda _change: saved.topics.mark())
    groups.changes.subscribe(lambda _version: saved.groups.mark())
    return saved


def load_tables(
    files: ConfigFiles, topics: TopicTable, groups: GroupTable, offsets: OffsetTable
) -> None:
    """Read what the last run has left."""
    topics.load(files.load(TOPICS))
    groups.load(files.load(SUBSCRIPTION_GROUPS))
    offsets.load(files.load(CONSUMER_OFFSETS))
