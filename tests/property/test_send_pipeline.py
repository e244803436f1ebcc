"""Sends give the same whether they come alone, in one write, cut anywhere, or as a batch.

The plain form of a send is :data:`~tests.property.send_outcomes.Way.PLAIN`: one request, with all
that is accelerated turned off. Whatever is quicker (runs, properties that are scanned and not taken
apart, half messages kept in memory, headers split by a known layout, answers from a template, queue
and index entries made for many records at once) must leave the same answers, records, queue and
index entries, counters, metrics and wake-ups. What each outcome holds, and what is masked, is in
:mod:`tests.property.send_outcomes`.

All ways share one pipeline, so that the plain form is itself compared: with the outcomes that a
broker left behind before there was one (:mod:`tests.property.send_oracle`).

More examples: ``SEND_EXAMPLES=2000 pytest tests/property/test_send_pipeline.py``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from skylark.core.hashing import decode_offset_id
from skylark.core.names import is_retry_topic
from skylark.wire.batch import BatchMessage
from skylark.wire.codes import RequestCode
from skylark.wire.layout import FLAG_TRANSACTION_MASK
from skylark.wire.properties import parse_properties
from tests.property import send_oracle
from tests.property.java_requests import JAVA_RELEASES, JAVA_REQUESTS, JAVA_SETTINGS
from tests.property.send_outcomes import Case, Outcome, Way, differences, play
from tests.property.send_requests import (
    ALIKE,
    BATCH_TOPIC,
    EDITED,
    EVERY_KIND,
    EVERY_KIND_BACK,
    NAMES_TWICE,
    SETTINGS,
    Request,
    Send,
    batches,
    requests,
)

EXAMPLES: Final = int(os.environ.get("SEND_EXAMPLES", "60"))
QUICK: Final = settings(
    max_examples=EXAMPLES,
    deadline=None,
    # To shrink a list of requests takes longer than a test may: the failing one is printed whole.
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


# ---- alone, in a run, split ----------------------------------------------------------------------

cases = st.builds(
    Case,
    requests=requests,
    settings=st.sampled_from([{}] * 6 + list(SETTINGS)),
    is_timed=st.booleans(),
    cuts=st.lists(st.integers(0, 10_000), max_size=8).map(tuple),
)


def compare(case: Case, ways: Sequence[Way] = (Way.ALONE, Way.RUN, Way.SPLIT)) -> list[str]:
    """How the outcomes of these ways differ from that of the plain one."""

    async def compared() -> list[str]:
        expected, frames = await play(case, Way.PLAIN)
        lines = []
        for way in ways:
            found, _ = await play(case, way, frames)
            lines += [f"{way.value}: {line}" for line in differences(expected, found)]
        return lines

    return asyncio.run(compared())


@QUICK
@given(cases)
@example(Case(EVERY_KIND, cuts=(1, 77, 500, 3_333, 9_999)))
@example(Case(EVERY_KIND, is_timed=False, cuts=(5_000,)))
@example(Case(EVERY_KIND_BACK, cuts=(2_000, 4_000)))
@example(Case(EVERY_KIND_BACK, is_timed=False, cuts=(2_500,)))
@example(Case([*ALIKE, *[replace(each, is_binary=True) for each in ALIKE]], is_timed=False))
@example(Case(NAMES_TWICE, cuts=(5_000,)))
@example(Case(EDITED, cuts=(5_000,)))
@example(Case(JAVA_REQUESTS, settings=JAVA_SETTINGS, cuts=(123, 1_234, 4_321, 6_543)))
@example(Case(JAVA_REQUESTS, settings=JAVA_SETTINGS, is_timed=False, cuts=(3_333, 6_666)))
def test_requests_give_the_same_alone_in_a_run_and_split(case: Case) -> None:
    """Records, queue and index entries, counters, metrics, wake-ups and answers."""
    assert compare(case) == []


@pytest.mark.parametrize("given_settings", SETTINGS, ids=str)
def test_every_kind_gives_the_same_with_any_settings(given_settings: dict[str, str]) -> None:
    case = Case(EVERY_KIND, settings=given_settings, is_timed=False)
    assert compare(case, [Way.RUN]) == []


def test_every_kind_is_stored_or_refused_for_a_reason_of_its_own() -> None:
    """What is compared is not all the same."""

    async def codes(requests: Sequence[Request]) -> list[int]:
        outcome, _ = await play(Case(requests), Way.RUN, (await play(Case(requests), Way.PLAIN))[1])
        return [answer["code"] for answer in outcome.answers.values()]

    found = asyncio.run(codes(EVERY_KIND))
    assert {code: found.count(code) for code in sorted(set(found))} == {
        0: 83,
        1: 6,
        13: 13,
        16: 2,
        17: 1,
        26: 1,
        29: 5,
    }
    assert set(asyncio.run(codes(EVERY_KIND_BACK))) == {0, 1, 26}


def test_requests_of_java_clients_are_all_stored() -> None:
    case = Case(JAVA_REQUESTS, settings=JAVA_SETTINGS)
    outcome, _ = asyncio.run(play(case, Way.PLAIN))
    assert {answer["code"] for answer in outcome.answers.values()} == {0}
    of_releases = len(JAVA_RELEASES) * len(("JSON", "binary"))
    committed = outcome.metrics['rocketmq_commit_messages_total{topic="T"}']
    assert committed == of_releases * len(("first half", "second half"))


# ---- before there was one pipeline ---------------------------------------------------------------


@pytest.mark.parametrize("name", send_oracle.CASES)
def test_every_kind_gives_what_was_recorded(name: str) -> None:
    assert send_oracle.unexplained(name) == []


@pytest.mark.parametrize("row", send_oracle.INTENDED, ids=lambda row: row.path)
def test_intended_differences_are_of_lines_that_were_recorded(row: send_oracle.Intended) -> None:
    """A row that changes nothing is to be removed."""
    found = [send_oracle.recorded(name).get(row.path, "") for name in send_oracle.CASES]
    assert any(row.was in line for line in found)
    assert row.reason


# ---- batches -------------------------------------------------------------------------------------

#: What a batch does differently from its messages sent one after the other; all else is the same.
BATCH_DIFFERENCES: Final = {
    "properties": (
        "The property string of a message is stored as it came. Nothing is added (MSG_REGION,"
        " TRACE_ON, CLUSTER, a unique id), taken away (POP_CK) or acted upon (ACTED_UPON)."
    ),
    "header": (
        "The flag is that of each message. Of the properties in the header only DELAY, which"
        " refuses, and UNIQ_KEY, which is answered, count."
    ),
    "refusals": (
        "A retry topic, transaction bits and DELAY > 0 in the header are illegal (13). One message"
        " that cannot be stored refuses all. The KEYS that compacted topics need are not looked at."
    ),
    "answer": (
        "There is one, with the ids of all messages by comma, the queue offset of the first, and"
        " the unique id of the header or a new one."
    ),
    "queue": "A queue id below 0 chooses one queue for all messages.",
    "counters": (
        "A batch is one put of n messages, in statistics and metrics; its size is that of records"
        " whose properties are shorter. The histogram of sizes gets one value, the mean."
    ),
    "BatchCQ": "There a batch is one record and single messages are refused: not compared here.",
}
#: Names that mean nothing in the messages of a batch. The messages that are sent one after the
#: other come without these.
ACTED_UPON: Final = frozenset(
    {
        "DELAY",
        "INNER_NUM",
        "POP_CK",
        "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC",
        "TIMER_DELIVER_MS",
        "TRAN_MSG",
        "_SYS_MSG_PRIORITY_",
    }
)
#: Counted by request or by byte, not by message.
PER_PUT_METRICS: Final = (
    "rocketmq_message_size",
    "rocketmq_rpc_latency",
    "rocketmq_throughput_in",
)
#: Fields of a record that depend on the size of the properties before it, or are these.
PER_SIZE_FIELDS: Final = {"log_offset", "raw_properties", "total_size"}


def singles_of(batch: Send) -> list[Request]:
    """The messages of a batch as requests of their own."""
    return [
        replace(
            batch,
            code=RequestCode.SEND_MESSAGE_V2,
            properties=_properties_of_single(part.properties.decode(), batch.topic),
            flag=part.flag,
            queue_id=max(0, batch.queue_id),  # the first choice of a fresh broker
            content=part.body,
            parts=(),
        )
        for part in batch.messages(0)
    ]


def _properties_of_single(text: str, topic: str) -> str:
    items = [item for item in text.split("\x02") if item.partition("\x01")[0] not in ACTED_UPON]
    if topic == "Compacted":
        items.insert(0, "KEYS\x01k")
    return "\x02".join(items)


def is_illegal_batch(batch: Send) -> bool:
    """Whether only a batch is refused for what is in its header."""
    level = parse_properties(batch.text(0) or "").get("DELAY", "").removeprefix("+")
    delays = level.isascii() and level.isdecimal() and int(level) > 0
    return bool(is_retry_topic(batch.topic) or batch.sys_flag & FLAG_TRANSACTION_MASK or delays)


def compare_batch(batch: Send) -> None:
    """Check that a batch does what its messages do, but for BATCH_DIFFERENCES."""

    async def outcomes() -> tuple[Outcome, Outcome]:
        together, _ = await play(Case([batch]), Way.PLAIN)
        one_by_one, _ = await play(Case(singles_of(batch)), Way.PLAIN)
        return together, one_by_one

    together, one_by_one = asyncio.run(outcomes())
    refused = [answer for answer in one_by_one.answers.values() if answer["code"]]
    records = list(together.records.values())
    if 0 in together.answers and together.answers[0]["code"]:
        assert records == []
        found = together.answers[0]["code"], together.answers[0]["remark"]
        reasons = [(answer["code"], answer["remark"]) for answer in refused]
        assert found in reasons or (is_illegal_batch(batch) and found[0] == 13)
        return
    if not records:  # refused as well, and one-way
        assert batch.is_oneway
        return
    assert not refused
    _check_stored(batch, together, one_by_one)


def _check_stored(batch: Send, together: Outcome, one_by_one: Outcome) -> None:
    messages = batch.messages(0)
    records = list(together.records.values())
    expected = list(one_by_one.records.values())
    assert [record["raw_properties"] for record in records] == [m.properties for m in messages]
    for record, single in zip(records, expected, strict=True):
        fields = set(record) - PER_SIZE_FIELDS
        assert {name: record[name] for name in fields} == {name: single[name] for name in fields}
    if not batch.is_oneway:
        ext = together.answers[0]["ext"]
        offsets = [decode_offset_id(each).log_offset for each in ext["msgId"].split(",")]
        assert offsets == list(together.records)
        first = one_by_one.answers[0]["ext"]
        for name in ("MSG_REGION", "TRACE_ON", "queueId", "queueOffset"):
            assert ext[name] == first[name]
        unique_id = parse_properties(batch.text(0) or "").get("UNIQ_KEY")
        assert ext["transactionId"] == unique_id or (unique_id is None and ext["transactionId"])
    _check_counted(batch, together, one_by_one)
    assert together.topics == one_by_one.topics
    tags = [[entry[2:] for entry in queue] for _, queue in together.queues.values()]
    assert tags == [[entry[2:] for entry in queue] for _, queue in one_by_one.queues.values()]
    assert together.pulls.keys() == one_by_one.pulls.keys()


def _check_counted(batch: Send, together: Outcome, one_by_one: Outcome) -> None:
    count = len(batch.parts)
    size = sum(record["total_size"] for record in together.records.values())
    single_size = sum(record["total_size"] for record in one_by_one.records.values())
    found, expected = dict(together.counters), dict(one_by_one.counters)
    key = ("puts by topic", batch.topic)
    puts, single_puts = found.pop(key), expected.pop(key)
    assert puts[0] == single_puts[0]
    assert (puts[1] - size, puts[2] - 1) == (single_puts[1] - single_size, single_puts[2] - count)
    store, single_store = found.pop("puts of the store"), expected.pop("puts of the store")
    assert (store[0], store[1] - size) == (single_store[0], single_store[1] - single_size)
    for left in (found, expected):
        left.pop("times of puts")
        for name in [name for name in left if name[0] == "gets by topic and group"]:
            left[name] = left[name][0]
    assert found == expected
    for outcome in (together, one_by_one):
        for name in [n for n in outcome.metrics if n.startswith((*PER_PUT_METRICS, OUT_METRIC))]:
            del outcome.metrics[name]
    assert together.metrics == one_by_one.metrics


#: Bytes that pulls have got: those of properties are fewer.
OUT_METRIC: Final = "rocketmq_throughput_out"


@settings(QUICK, max_examples=EXAMPLES // 2)
@given(batches.filter(lambda batch: batch.topic != BATCH_TOPIC))
@example(
    Send(parts=(BatchMessage(b"a", b"TAGS\x01A\x02"), BatchMessage(b"b", b"KEYS\x01k")), code=320)
)
def test_a_batch_does_what_its_messages_do(batch: Send) -> None:
    compare_batch(batch)
