"""Derived entries made for many records at once equal those made one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core.names import SCHEDULE_TOPIC
from skylark.store.commit_log import Draft
from skylark.store.put_message import Putter
from skylark.store.reput import Reput, TagsCodes
from skylark.wire.batch import Batch, BatchMessage
from skylark.wire.message import iter_records
from tests.unit.store.crash_store import derived_files
from tests.unit.store.small_store import HOST, SmallStore, memory_store

HALF, COMMIT, ROLLBACK = 0x4, 0x8, 0xC
COMMON = b"7F0000010A2B18B4AAC2"


class Site:
    """A store in memory that takes messages in one way or another."""

    def __init__(self) -> None:
        self.store: SmallStore = memory_store()
        store = self.store
        self.dispatch = Reput(store.index, TagsCodes((1000, 5000)))
        self.putter = Putter(store.config, store.log, store.queues, self.dispatch, store.flags)

    def files(self) -> dict[str, bytes]:
        self.store.queues.flush()
        self.store.index.flush()
        return derived_files(self.store.files)


def draft(number: int, **fields: object) -> Draft:
    properties = b"UNIQ_KEY\x01%b%08X\x02TAGS\x01A\x02KEYS\x01k l\x02" % (COMMON, number)
    values = {"topic": "T", "queue_id": 0, "body": b"body", "properties": properties} | fields
    return Draft(born_host=HOST, **values)  # type: ignore[arg-type]


def changed(number: int, kind: str) -> Draft:
    """One of many kinds of messages, most of them alike."""
    properties = draft(number).properties
    match kind:
        case "queue":
            return draft(number, queue_id=1)
        case "topic":
            return draft(number, topic="U")
        case "delay":
            return draft(number, topic=SCHEDULE_TOPIC, properties=properties + b"DELAY\x011\x02")
        case "half" | "commit" | "rollback":
            kinds = {"half": HALF, "commit": COMMIT, "rollback": ROLLBACK}
            return draft(number, sys_flag=kinds[kind])
        case "tag":
            return draft(number, properties=properties.replace(b"TAGS\x01A", b"TAGS\x01B"))
        case "key":
            return draft(number, properties=properties.replace(b"k l", b"m n"))
        case "id":
            return draft(number, properties=properties.replace(COMMON, COMMON[::-1]))
        case "no id":
            return draft(number, properties=b"TAGS\x01A\x02")
        case "no hex":
            return draft(number, properties=properties.replace(b"%08X" % number, b"order-77"))
        case _:
            return draft(number)


kinds = st.sampled_from(
    [*["same"] * 6, "queue", "topic", "delay", "half", "commit", "rollback", "tag", "key", "id",
     "no id", "no hex"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(kinds, min_size=1, max_size=12), kinds)
def test_a_run(chosen: list[str], common: str) -> None:
    single, run = Site(), Site()
    for several in (chosen, [common] * 6):  # a mixture, and a run of one kind
        drafts = [changed(number, kind) for number, kind in enumerate(several)]
        for each in drafts:
            assert single.putter.put(each).status.stored
        assert all(result.status.stored for result in run.putter.put_run(drafts))
    assert run.files() == single.files()
    assert run.dispatch.dispatched_until == single.dispatch.dispatched_until


@pytest.mark.parametrize("kind", ["same", "tag", "key", "no id", "no hex"])
@pytest.mark.parametrize("sys_flag", [0, COMMIT])
def test_a_batch(kind: str, sys_flag: int) -> None:
    single, batch = Site(), Site()
    drafts = [changed(number, kind if number == 3 else "same") for number in range(9)]
    for each in drafts:
        each.sys_flag = sys_flag
        single.putter.put(each)
    messages = Batch.of([BatchMessage(each.body, each.properties) for each in drafts])
    assert batch.putter.put_batch(draft(0, sys_flag=sys_flag), messages).message_count == 9
    assert batch.files() == single.files()
    last = single.store.log.files.last
    records = iter_records(bytes(last.buffer[: last.wrote]))
    assert [record.queue_offset for record in records] == list(range(9))


@pytest.mark.parametrize("changes", [0, 1, 3, 19])
@pytest.mark.parametrize("sys_flag", [0, COMMIT, ROLLBACK])
def test_runs_of_final_messages(changes: int, sys_flag: int) -> None:
    """Their ids and numbers differ; so do their queues, once or often."""
    single, run = Site(), Site()
    drafts = []
    for number in range(40):
        each = draft(number, queue_id=number * (changes + 1) // 40 % 2, sys_flag=sys_flag)
        each.properties += b"number\x01%02d\x02" % number
        drafts.append(each)
    for each in drafts:
        single.putter.put(each)
    run.putter.put_run(drafts)
    assert run.files() == single.files()
    assert run.dispatch.dispatched_until == single.dispatch.dispatched_until
