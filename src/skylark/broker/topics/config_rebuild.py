"""What happens when ``config/topics.json`` is lost: the check at start, and the rebuild.

Without its topics a broker refuses to serve the messages in its store (17, the topic does not
exist), and cleaning of unused topics deletes their queues. So a start compares the topics with the
queues of the store (:class:`LostTopicsCheck`). If the file is missing or empty, has no backup, and
the store has queues of topics that only the file could name:

* a master does not start. The error lists the choices;
* a slave logs a warning and goes on: its master has the topics, and the slave copies them.

A new store has no file either. A master writes the file before it accepts the first message, so
that a crash soon after cannot look like a lost file.

``skylark store rebuild-config`` makes the tables again from the queue folders
(:func:`plan_rebuild`, :func:`write_rebuild`). The folders give the names of topics, how many queues
have messages, and whether a topic is a BatchCQ topic. The names of retry and dead-letter topics
give the groups. Permissions, attributes and offsets are not in the folders: topics can be read and
written, and groups begin at their start position.

A crash while it writes leaves either no ``topics.json``, and the command can be repeated, or all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from skylark.broker.config import BrokerConfig
from skylark.broker.table_saver import CONFIG_DIRECTORY, SavedTable, TableT
from skylark.broker.topics.attributes import QUEUE_TYPE
from skylark.broker.topics.topic_table import QUEUE_COUNT_MAX, READ_WRITE, TopicTable
from skylark.core import names
from skylark.core.errors import RemoteProtocolError, StoreError
from skylark.store import config_tables
from skylark.store.config_files import SUBSCRIPTION_GROUPS, TOPICS, ConfigFile, ConfigFiles
from skylark.store.errors import StoreFileMissingError
from skylark.store.file_system import FileSystem
from skylark.store.inspection.store_directory import (
    LOCK_NAME,
    FileSizes,
    NotAStoreError,
    Survey,
    survey,
)
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig

logger = logging.getLogger(__name__)

#: Topics that the error of a start names.
_NAMED_MAX: Final = 5


class LostTopicsError(StoreError):
    """The store has messages, but ``topics.json`` with their topics is gone."""


class LostTopicsCheck:
    """Finds topics of a store that a broker does not know because ``topics.json`` is lost."""

    def __init__(self, config: BrokerConfig, topics: TopicTable, files: FileSystem) -> None:
        self._config = config
        self._topics = topics
        self._files = files

    def check_folders(self) -> None:
        """Check before the store is opened: a refused start then leaves it as it is."""
        if not self._topics.has_file:
            store = self._config.store
            try:
                surveyed = survey(
                    self._files,
                    store.store_path_root_dir,
                    FileSizes(),
                    log_path=store.commit_log_path,
                )
            except (StoreFileMissingError, NotAStoreError):
                return  # a new store
            self.check(queue.topic for queue in surveyed.queues)

    def check(self, stored: Iterable[str]) -> None:
        """Check the topics of all queues; raises LostTopicsError at a master."""
        if self._topics.has_file:
            return
        lost = sorted(
            topic
            for topic in set(stored)
            if topic not in self._topics
            and not self._topics.is_system(topic)
            and not topic.startswith(names.LMQ_PREFIX)
        )
        if not lost:
            return
        root = self._config.store.store_path_root_dir
        more = ", ..." if len(lost) > _NAMED_MAX else ""
        problem = (
            f"{root / CONFIG_DIRECTORY / TOPICS.name} is missing or empty, but the store has"
            f" messages of {len(lost)} topics: {', '.join(lost[:_NAMED_MAX])}{more}"
        )
        if self._config.is_slave:
            logger.warning("%s. The slave copies the topics of its master", problem)
            return
        raise LostTopicsError(
            problem,
            hint=(
                f"restore the folder {CONFIG_DIRECTORY} from a backup; or make the topics again"
                f" from the queue folders: skylark store rebuild-config {root}; or start with"
                " another storePathRootDir, without these messages"
            ),
        )


async def save_new_topics(topics: TopicTable, saved: SavedTable[config_tables.TopicTable]) -> None:
    """Write the file of a new master; returns when it is on disk, or the write has failed."""
    if not topics.has_file:
        saved.mark()
        with suppress(StoreError):  # the saver logs it and tries again
            await saved.written()


class RebuildPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Topics and groups that the tables of a store lack."""

    topics: list[TopicConfig]
    groups: list[SubscriptionGroupConfig]


def plan_rebuild(files: FileSystem, surveyed: Survey) -> RebuildPlan:
    """What the queue folders of a store name and its tables lack; changes nothing.

    Raises BrokenConfigError if a table cannot be read and has no backup.
    """
    config_files = ConfigFiles(files, surveyed.root / CONFIG_DIRECTORY)
    directory = surveyed.root / CONFIG_DIRECTORY
    known_topics = _read(files, directory, config_files, TOPICS).topic_config_table
    known_groups = _read(files, directory, config_files, SUBSCRIPTION_GROUPS)
    queue_counts: dict[str, int] = {}
    batch_topics = set()
    for queue in surveyed.queues:
        count = min(queue.queue_id + 1, QUEUE_COUNT_MAX)
        queue_counts[queue.topic] = max(count, queue_counts.get(queue.topic, 0))
        if queue.is_batch:
            batch_topics.add(queue.topic)
    topics = [
        TopicConfig(
            topic_name=topic,
            read_queue_nums=count,
            write_queue_nums=count,
            perm=READ_WRITE,
            attributes={QUEUE_TYPE: "BatchCQ"} if topic in batch_topics else {},
        )
        for topic, count in sorted(queue_counts.items())
        if topic not in known_topics
        and not names.is_system_topic(topic)
        and not topic.startswith(names.LMQ_PREFIX)
    ]
    groups = [
        SubscriptionGroupConfig(group_name=group)
        for group in _groups_of(queue_counts)
        if group not in known_groups.subscription_group_table
    ]
    return RebuildPlan(topics=topics, groups=groups)


def write_rebuild(files: FileSystem, root: Path, plan: RebuildPlan, now_ms: int) -> None:
    """Add topics and groups to the tables; raises StoreLockedError if a broker uses the store."""
    config_files = ConfigFiles(files, root / CONFIG_DIRECTORY)
    lock = files.lock(root / LOCK_NAME)
    try:
        if plan.groups:
            groups = config_files.load(SUBSCRIPTION_GROUPS)
            groups.subscription_group_table.update((g.group_name, g) for g in plan.groups)
            groups.data_version = groups.data_version.next(now_ms)
            config_files.save(SUBSCRIPTION_GROUPS, groups)
        # Last: as long as this file is missing, a master does not start.
        topics = config_files.load(TOPICS)
        topics.topic_config_table.update((topic.topic_name, topic) for topic in plan.topics)
        topics.data_version = topics.data_version.next(now_ms)
        config_files.save(TOPICS, topics)
    finally:
        lock.release()


def _read(
    files: FileSystem, directory: Path, config_files: ConfigFiles, file: ConfigFile[TableT]
) -> TableT:
    """A table or its backup; unlike :meth:`ConfigFiles.load` it sets no broken file aside."""
    for name in (file.name, f"{file.name}.bak"):
        try:
            content = files.read_file(directory / name)
            if content:
                return file.decode(content)
        except (StoreFileMissingError, RemoteProtocolError):
            continue
    return config_files.load(file)  # an empty table; raises if a file is broken


def _groups_of(topics: Iterable[str]) -> list[str]:
    """The groups of retry and dead-letter topics, without the retry topics of POP."""
    found = set(topics)
    plain = [topic for topic in found if not names.is_retry_topic(topic)]
    pop_endings = tuple(f"_{topic}" for topic in plain)
    groups = set()
    for topic in found:
        if names.is_dlq_topic(topic):
            groups.add(topic.removeprefix(names.DLQ_PREFIX))
        elif names.is_retry_topic(topic) and not topic.endswith(pop_endings):
            groups.add(topic.removeprefix(names.RETRY_PREFIX))
    return sorted(group for group in groups if names.group_problem(group) is None)
