"""Decisions about half messages, alone and in runs: the stored messages; each counts once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylark.broker.send import send_step
from skylark.broker.transaction.recent_halves import RecentHalves
from skylark.net.connection import Connection
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.codes import RequestCode
from skylark.wire.command import FLAG_ONEWAY, Command
from tests.unit.broker.transaction.halves import (
    COMMIT,
    HALF,
    OP,
    ROLLBACK,
    UNKNOWN,
    Sent,
    Shop,
    killed,
    shop,
)

JAVA = "TRAN_MSG\x01true\x02UNIQ_KEY\x01U1\x02PGROUP\x01pg\x02"


def everything(world: Shop) -> list[Any]:
    """All records with all fields, and all counts."""
    found: list[Any] = []
    for topic, queue_id in ((HALF, 0), ("T", 1)):
        for record in world.records(topic, queue_id):
            fields = {name: getattr(record, name) for name in record.__struct_fields__}
            found.append({name: fields[name] for name in fields if name != "_parsed"})
    counts, stats = world.transactions.counts, world.features.stats.broker_stats
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
        each for each in world.features.endpoint.server.connections if isinstance(each, Connection)
    )
    end_run = world.features.endpoint.server.dispatcher.runs[RequestCode.END_TRANSACTION]
    return list(end_run(connection, requests))


async def ended(world: Shop, sent: list[Sent]) -> None:
    assert run(world, [request(world, each) for each in sent]) == [None] * len(sent)


async def test_with_and_without_the_cache_the_same_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(tmp_path / "quick") as world:
        quick = await story(world)
        assert world.bodies() == [b"0", b"1", b"2", b"3", b"5"]
        assert len(world.transactions.recent) == 0  # all are decided
    monkeypatch.setattr(RecentHalves, "find", lambda _self, _ext: None)
    async with shop(tmp_path / "by-record") as world:
        assert await story(world) == quick
    monkeypatch.setattr(send_step, "_is_simple_half", lambda _text, _actions: False)
    async with shop(tmp_path / "rewritten") as world:
        assert await story(world) == quick


async def test_one_that_was_asked_about_is_committed_with_all_its_copies(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        one, two = [await world.producer.send(unique_id) for unique_id in ("U1", "U2")]
        await world.rounds()
        assert len(world.producer.check_backs) == 2
        for each in (one, two):
            assert (await world.producer.end(each)).code == 0
        assert world.bodies() == [b"x", b"x"]
        await world.clock.advance(seconds=4)
        assert world.op_bodies() == [b"0,2,1,3,"]


async def test_two_decisions_about_one_message_in_a_run(tmp_path: Path) -> None:
    """The second must see what the first has stored."""
    async with shop(tmp_path) as world:
        one, two = [await world.producer.send(unique_id) for unique_id in ("U1", "U2")]
        answers = run(
            world,
            [
                request(world, one, oneway=False),
                request(world, two, oneway=False),
                request(world, one, oneway=False),
                request(world, two, ROLLBACK, oneway=False),
            ],
        )
        assert [answer.code for answer in answers] == [0, 0, 0, 1]
        assert len(world.bodies()) == 2


def half_request(world: Shop, unique_id: str) -> Command:
    properties = JAVA.replace("U1", unique_id)
    ext = {
        "a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "4",
        "g": str(world.clock.now_ms()), "h": "0", "i": properties,
    }  # fmt: skip
    return Command(code=RequestCode.SEND_MESSAGE_V2, ext=ext, body=b"x")


async def test_a_decision_in_the_same_run_right_behind_its_half_message(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        guessed = Sent(world.features.store.log.max_offset, 0, "U1")
        beyond = Sent(1 << 20, 1, "U2")
        answers = run(
            world,
            [
                half_request(world, "U1"),
                request(world, guessed, oneway=False),
                request(world, beyond, oneway=False),
                request(world, beyond, ROLLBACK, oneway=False),
                request(world, guessed, oneway=False),
            ],
        )
        assert [getattr(answer, "code", 0) for answer in answers] == [0, 0, 1, 1, 0]
        assert world.bodies() == [b"x"]


async def test_a_rollback_that_is_awaited_keeps_its_place_in_the_log(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        sent = await world.producer.send("U0")
        run(world, [half_request(world, "U1"), request(world, sent, ROLLBACK, oneway=False)])
        (op,) = world.records(OP)
        assert op.log_offset > world.records(HALF)[-1].log_offset


async def test_a_commit_that_the_timer_refuses_is_a_failed_put(tmp_path: Path) -> None:
    async with shop(tmp_path, timerWheelEnable="false") as world:
        sent = await world.producer.send("U1", TIMER_DELAY_SEC="5")
        before = world.features.stats.store_stats.put_failed_count
        assert (await world.producer.end(sent)).code != 0
        assert world.features.stats.store_stats.put_failed_count == before + 1
        assert world.transactions.counts.waiting["T"] == 1


async def test_what_cannot_be_stored_stays_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(tmp_path) as world:
        one, two = [await world.producer.send(unique_id) for unique_id in ("U1", "U2")]
        store = world.features.store
        put_run = store.put_run

        def failing(drafts: list[Draft]) -> list[PutResult]:
            return [PutResult(PutStatus.SERVICE_NOT_AVAILABLE), *put_run(drafts[1:])]

        requests = [request(world, each, oneway=False) for each in (one, two)]
        with monkeypatch.context() as patch:
            patch.setattr(store, "put_run", failing)
            refused, answer = run(world, requests)
        assert (refused.code, answer.code) == (14, 0)
        assert refused.remark.startswith("Service not available now.")
        assert world.transactions.counts.waiting["T"] == 1
        assert len(world.transactions.recent) == 1
        assert (await world.producer.end(one)).code == 0
        assert len(world.bodies()) == 2
        assert world.transactions.counts.waiting["T"] == 0


async def test_an_unexpected_error_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(tmp_path) as world:
        sent = [await world.producer.send(f"U{number}") for number in range(3)]

        def broken(_drafts: list[Draft]) -> list[PutResult]:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(world.features.puts.writer, "put_run", broken)
            answers = run(world, [request(world, each, oneway=False) for each in sent])
        assert [each.code for each in answers] == [1, 1, 1]
        assert caplog.text.count("ZeroDivisionError") >= 1
        assert [(await world.producer.end(each)).code for each in sent] == [0, 0, 0]
        assert len(world.bodies()) == 3


@pytest.mark.parametrize(
    "name", ["CHECK_IMMUNITY_TIME_IN_SECONDS", "DELAY", "TIMER_DELAY_SEC", "REAL_TOPIC"]
)
async def test_a_half_message_with_other_actions_is_not_cached(tmp_path: Path, name: str) -> None:
    async with shop(tmp_path) as world:
        properties: dict[str, Any] = {name: "1"}
        sent = await world.producer.send("U1", **properties)
        assert len(world.transactions.recent) == 0
        await world.producer.send("U2")
        assert len(world.transactions.recent) == 1
        assert (await world.producer.end(sent)).code == 0


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


async def test_settings_that_forbid_transactions_apply(tmp_path: Path) -> None:
    async with shop(tmp_path, rejectTransactionMessage="true") as world:
        answer = await world.send("T", properties=JAVA)
        assert answer.code == 16
        assert "sending transaction message is forbidden" in (answer.remark or "")
        assert world.records(HALF) == []
