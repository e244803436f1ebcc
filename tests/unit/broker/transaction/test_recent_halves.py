"""The short way of plain half messages: what it stores is what the long one stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.send import send_run
from skylark.broker.transaction.half_message import prepare, read_half
from skylark.broker.transaction.recent_halves import (
    PlainHalf,
    RecentHalf,
    RecentHalves,
    read_plain_half,
)
from skylark.net.connection import Connection
from skylark.store.commit_log import Draft
from skylark.store.put_message import PutLimits
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.codes import RequestCode
from skylark.wire.command import FLAG_ONEWAY, Command
from skylark.wire.message import decode_record, encode_record
from skylark.wire.properties import encode_properties, parse_properties
from tests.unit.broker.transaction.halves import (
    COMMIT,
    HALF,
    ROLLBACK,
    UNKNOWN,
    Sent,
    Shop,
    killed,
    shop,
)

ADDED = "MSG_REGION\x01R\x02TRACE_ON\x01true\x02CLUSTER\x01C\x02"
JAVA = "TRAN_MSG\x01true\x02UNIQ_KEY\x01U1\x02PGROUP\x01pg\x02"


def draft_of(**changes: Any) -> Draft:
    fields: dict[str, Any] = {
        "flag": 7, "sys_flag": 5, "born_timestamp": 3, "born_host": b"\1\2\3\4\0\0\0\5",
        "reconsume_times": 2,
    }  # fmt: skip
    return Draft("T", 3, b"body", **{**fields, **changes})


def plain(text: str = JAVA) -> PlainHalf:
    half = read_plain_half(text)
    assert half is not None
    return half


# --- what is plain --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        JAVA,
        "KEYS\x01a b\x02" + JAVA + "TAGS\x01t\x02",
        "UNIQ_KEY\x01U1\x02PGROUP\x01pg\x02TRAN_MSG\x01true\x02",
        JAVA + "TRAN_MSGS\x01x\x02REAL\x01y\x02DELAYED\x01\x01z\x02",
    ],
)
def test_what_is_plain(text: str) -> None:
    half = plain(text)
    assert (half.unique_id, half.group, half.properties) == ("U1", "pg", text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "UNIQ_KEY\x01U1\x02PGROUP\x01pg\x02",
        "UNIQ_KEY\x01U1\x02PGROUP\x01pg\x02X\x01TRAN_MSG\x02",
        "UNIQ_KEY\x01U1\x02PGROUP\x01pg\x02XTRAN_MSG\x01true\x02",
        "TRAN_MSG\x01true\x02UNIQ_KEY\x01U1\x02",
        "TRAN_MSG\x01true\x02PGROUP\x01pg\x02",
        JAVA[:-1],
        JAVA + "x",
        JAVA + "\x02",
        JAVA + "x\x01\x02",
        JAVA + "\x01x\x02",
        JAVA.replace("true", "TRUE"),
        JAVA.replace("true", "false"),
        JAVA + "TRAN_MSG\x01false\x02",
        *(
            f"{JAVA}{name}\x011\x02"
            for name in (
                "DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "INNER_NUM",
                "POP_CK", "MSG_REGION", "TRACE_ON", "CLUSTER", "REAL_TOPIC", "REAL_QID",
                "__transactionId__", "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES",
                "CHECK_IMMUNITY_TIME_IN_SECONDS", "__CRC32#",
            )
        ),
    ],
)  # fmt: skip
def test_what_is_not_plain(text: str) -> None:
    assert read_plain_half(text) is None


# --- what it becomes ------------------------------------------------------------------------------

NAMES = st.text(st.characters(blacklist_characters="\x01\x02", codec="utf-8"), min_size=1)
VALUES = st.text(st.characters(blacklist_characters="\x02", codec="utf-8"), min_size=1)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(NAMES, VALUES, max_size=4),
    st.integers(0, 4),
    st.sampled_from([0, 1, 4, 5, 8, 12]),
)
def test_the_bytes_are_those_of_the_long_way(
    more: dict[str, str], place: int, sys_flag: int
) -> None:
    items = list(more.items())
    items[place:place] = list(parse_properties(JAVA).items())
    text = encode_properties(dict(items))
    half = read_plain_half(text)
    if half is None:  # a name by chance
        return
    quick, slow = draft_of(sys_flag=sys_flag), draft_of(sys_flag=sys_flag)
    half.prepare(quick, ADDED)
    properties = {**parse_properties(text), **parse_properties(ADDED)}
    prepare(slow, properties)
    slow.properties = encode_properties(properties).encode()
    assert quick == slow

    record = decode_record(
        encode_record(
            slow.topic,
            slow.body,
            slow.properties,
            queue_id=slow.queue_id,
            queue_offset=11,
            log_offset=900,
            born_timestamp=slow.born_timestamp,
            born_host=slow.born_host,
            store_timestamp=1,
            store_host=bytes(8),
            flag=slow.flag,
            sys_flag=slow.sys_flag,
            reconsume_times=slow.reconsume_times,
        )
    )
    stored = read_half(record)
    assert stored is not None
    final, properties = stored.final()
    final.properties = encode_properties(properties).encode()
    recent = RecentHalves()
    recent.add(half, PutResult(PutStatus.PUT_OK, 900, 100, 11, 1, 1))
    kept = recent.find(decision(offset="11", log_offset="900"))
    assert kept is not None
    assert kept.final == final
    assert kept.offset == 11


# --- what is kept ---------------------------------------------------------------------------------


def decision(*, offset: str = "5", log_offset: str = "700", **changes: str) -> dict[str, str]:
    return {
        "producerGroup": "pg", "tranStateTableOffset": offset, "commitLogOffset": log_offset,
        "commitOrRollback": "8", "msgId": "U1", "transactionId": "U1", **changes,
    }  # fmt: skip


def added(recent: RecentHalves, offset: int, size: int = 100) -> None:
    half = plain()
    half.prepare(draft_of(), ADDED)
    recent.add(half, PutResult(PutStatus.PUT_OK, offset + 695, size, offset, 1, 1))


def test_only_a_commit_that_fits_finds_it() -> None:
    recent = RecentHalves()
    added(recent, 5)
    for name in ("tranStateTableOffset", "commitLogOffset", "commitOrRollback"):
        assert recent.find(decision(**{name: "6"})) is None
    for name in ("producerGroup", "transactionId"):
        assert recent.find(decision(**{name: "other"})) is None
    for name in decision():
        ext = decision()
        del ext[name]
        assert recent.find(ext) is None
    assert recent.find(decision(commitOrRollback="12")) is None
    half = recent.find(decision())
    assert half is not None
    recent.drop(half)
    assert recent.find(decision()) is None
    recent.keep(half)
    assert recent.find(decision()) is half


def test_what_is_kept_has_a_limit() -> None:
    recent = RecentHalves(size_max=10 * (1_024 + 100))
    for offset in range(30):
        added(recent, offset)
    assert len(recent) == 10
    assert recent.find(decision(offset="19", log_offset="714")) is None
    assert recent.find(decision(offset="20", log_offset="715")) is not None
    added(recent, 30, size=1 << 20)  # more than all
    assert len(recent) == 0
    added(recent, 31)
    assert len(recent) == 1


# --- in a broker ----------------------------------------------------------------------------------


def everything(world: Shop) -> list[Any]:
    """All records with all fields, and all counts."""
    found: list[Any] = []
    for topic, queue_id in ((HALF, 0), ("T", 1)):
        for record in world.records(topic, queue_id):
            fields = {name: getattr(record, name) for name in record.__struct_fields__}
            found.append({name: fields[name] for name in fields if name != "_parsed"})
    counts, stats = world.transactions.counts, world.graph.stats
    found += [counts.committed, counts.rolled_back, counts.waiting, world.op_bodies()]
    meters = (stats.topic_puts[topic] for topic in (HALF, "T"))
    found += [(meter.count, meter.size, meter.times) for meter in meters]
    found += [stats.user_put_count, stats.system_put_count, counts.snapshot().data_version.counter]
    return found


async def story(world: Shop) -> list[Any]:
    """Half messages of all kinds, and decisions that come together."""
    more: list[dict[str, str]] = [{}, {"TAGS": "a", "KEYS": "k"}, {"DELAY": "0"}, {}, {}, {}]
    sent = [
        await world.producer.send(f"U{number}", body=b"%d" % number, **each)
        for number, each in enumerate(more)
    ]
    await ended(world, sent[:3])
    wrong = Sent(sent[3].log_offset, sent[3].queue_offset, "other")
    together = [
        (sent[1], COMMIT), (sent[3], COMMIT), (sent[3], COMMIT), (sent[3], ROLLBACK),
        (wrong, COMMIT), (sent[4], ROLLBACK), (sent[4], COMMIT), (sent[5], UNKNOWN),
        (sent[5], COMMIT),
    ]  # fmt: skip
    answers = run(world, [request(world, *each, oneway=False) for each in together])
    codes = [None if each is None else each.code for each in answers]
    assert codes == [0, 0, 0, 1, 1, 0, 1, None, 0]
    await world.clock.advance(seconds=4)
    return everything(world)


def request(world: Shop, sent: Sent, decision: int = COMMIT, *, oneway: bool = True) -> Command:
    ext = world.producer.decision(sent, decision)
    flag = FLAG_ONEWAY if oneway else 0
    return Command(code=RequestCode.END_TRANSACTION, ext=ext, flag=flag)


def run(world: Shop, requests: list[Command]) -> list[Any]:
    (connection,) = (
        each for each in world.graph.server.connections if isinstance(each, Connection)
    )
    end_run = world.graph.server.dispatcher.runs[RequestCode.END_TRANSACTION]
    return list(end_run(connection, requests, True))


async def ended(world: Shop, sent: list[Sent]) -> None:
    assert run(world, [request(world, each) for each in sent]) == [None] * len(sent)


async def test_both_ways_store_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shop(tmp_path / "quick") as world:
        quick = await story(world)
        assert world.bodies() == [b"0", b"1", b"2", b"3", b"5"]
        assert len(world.transactions.recent) == 1  # the one that was rolled back
    monkeypatch.setattr(RecentHalves, "find", lambda _self, _ext: None)
    async with shop(tmp_path / "by-record") as world:
        assert await story(world) == quick
    monkeypatch.setattr(send_run, "read_plain_half", lambda _text: None)
    async with shop(tmp_path / "slow") as world:
        assert await story(world) == quick
        assert len(world.transactions.recent) == 0


async def test_one_that_was_asked_about_takes_the_long_way(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        one, two = [await world.producer.send(unique_id) for unique_id in ("U1", "U2")]
        assert world.transactions.recent_half(world.producer.decision(two, COMMIT)) is not None
        await world.rounds()
        assert len(world.producer.questions) == 2
        for each in (one, two):
            assert world.transactions.recent_half(world.producer.decision(each, COMMIT)) is None
            assert (await world.producer.end(each)).code == 0
        assert world.bodies() == [b"x", b"x"]
        await world.clock.advance(seconds=4)
        assert world.op_bodies() == [b"0,2,1,3,"]


async def test_what_cannot_be_stored_stays_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(tmp_path) as world:
        one, two = [await world.producer.send(unique_id) for unique_id in ("U1", "U2")]
        store = world.graph.store
        put_run = store.put_run

        def failing(drafts: list[Draft], limits: PutLimits) -> list[PutResult]:
            return [PutResult(PutStatus.SERVICE_NOT_AVAILABLE), *put_run(drafts[1:], limits)]

        requests = [request(world, each, oneway=False) for each in (one, two)]
        with monkeypatch.context() as patch:
            patch.setattr(store, "put_run", failing)
            refused, answer = run(world, requests)
        assert (refused.code, answer.code) == (14, 0)
        assert refused.remark.startswith("Service not available now.")
        assert world.transactions.counts.waiting["T"] == 1
        assert isinstance(world.transactions.recent.find(requests[0].ext or {}), RecentHalf)
        assert (await world.producer.end(one)).code == 0
        assert len(world.bodies()) == 2
        assert world.transactions.counts.waiting["T"] == 0


async def test_an_error_of_our_own_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(tmp_path) as world:
        sent = [await world.producer.send(f"U{number}") for number in range(3)]

        def broken(_drafts: list[Draft]) -> list[PutResult]:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(world.graph.writer, "put_run", broken)
            answers = run(world, [request(world, each, oneway=False) for each in sent])
        assert [each.code for each in answers] == [1, 1, 1]
        assert caplog.text.count("ZeroDivisionError") >= 1
        assert [(await world.producer.end(each)).code for each in sent] == [0, 0, 0]
        assert len(world.bodies()) == 3


async def test_after_a_kill_decisions_stand(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        sent = [await world.producer.send(f"U{number}") for number in range(3)]
        await ended(world, sent[:2])
        left = killed(world, tmp_path / "left")
    async with shop(left) as world:
        assert len(world.transactions.recent) == 0
        for each in sent:
            assert (await world.producer.end(each)).code == 0
        assert world.bodies() == [b"x"] * 3


async def test_with_checksums_of_properties(tmp_path: Path) -> None:
    async with shop(tmp_path, enabledAppendPropCRC="true") as world:
        sent = await world.producer.send("U1")
        await ended(world, [sent])
        (half,), (final,) = world.records(HALF), world.records("T", 1)
        assert len(final.raw_properties) == len(half.raw_properties) - len(
            "REAL_TOPIC\x01T\x02REAL_QID\x011\x02"
        )
        assert final.raw_properties.count(b"__CRC32#\x01") == 1
        assert final.properties["__CRC32#"] != half.properties["__CRC32#"]


async def test_settings_that_forbid_transactions_are_asked(tmp_path: Path) -> None:
    async with shop(tmp_path, rejectTransactionMessage="true") as world:
        answer = await world.send("T", properties=JAVA)
        assert answer.code == 16
        assert "sending transaction message is forbidden" in (answer.remark or "")
        assert world.records(HALF) == []
