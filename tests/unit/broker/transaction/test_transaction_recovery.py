"""Decisions after a restart: killed brokers, stopped ones, and stores of other brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.broker.transaction import transaction_service as service_module
from skylark.broker.transaction.op_messages import op_draft
from skylark.store.store_results import PutStatus
from skylark.wire.codes import RequestCode
from tests.unit.broker.transaction.halves import (
    COMMIT,
    GIVEN_UP,
    GROUP,
    HALF,
    OP,
    ROLLBACK,
    Shop,
    killed,
    shop,
)


async def settled(world: Shop) -> None:
    """Let rounds pass everything that is decided, and the disk have it."""
    await world.flushed()
    await world.rounds(2)
    await world.flushed()
    await world.rounds()


@pytest.mark.spec("spark.9.31")
async def test_a_commit_without_op_message_is_not_repeated_after_a_kill(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        await world.send("Other", properties="UNIQ_KEY\x01O\x02")
        sent = await world.producer.send("U1")
        open_one = await world.producer.send("U2")
        assert (await world.producer.end(sent)).code == 0
        assert world.op_bodies() == []
        root = killed(world, tmp_path / "killed")
    async with shop(root, start_ms=world.clock.now_ms()) as world:
        assert (await world.producer.end(sent)).code == 0
        refused = await world.producer.end(sent, ROLLBACK)
        assert (refused.code, (refused.remark or "")[:22]) == (1, "half already committed")
        await world.rounds(2)
        assert world.bodies() == [b"x"]
        # Only the other one is asked about.
        assert {world.producer.checked(index).unique_id for index in (0, 1)} == {"U2"}
        assert (await world.producer.end(open_one)).code == 0
        assert world.bodies() == [b"x", b"x"]


async def test_a_rollback_without_op_message_is_lost(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        sent = await world.producer.send("U1")
        await world.producer.end_oneway(sent, ROLLBACK)
        answered = await world.producer.send("U2")
        root = killed(world, tmp_path / "killed")
        assert (await world.producer.end(answered, ROLLBACK)).code == 0
        answered_root = killed(world, tmp_path / "answered")
    async with shop(root, start_ms=world.clock.now_ms()) as world:
        await world.rounds()
        assert world.producer.checked(0).unique_id == "U1"
        assert (await world.producer.end(world.producer.checked(0), check=True)).code == 0
        assert world.bodies() == [b"x"]
    # A rollback that was answered is kept, and with it what was collected.
    async with shop(answered_root, start_ms=world.clock.now_ms()) as world:
        await world.rounds(2)
        assert world.producer.check_backs == []
        assert (await world.producer.end(sent)).code == 1
        assert (await world.producer.end(answered)).code == 1
        assert world.bodies() == []


@pytest.mark.parametrize("index", ["true", "false"])
async def test_op_messages_are_read_back(tmp_path: Path, index: str) -> None:
    async with shop(tmp_path, messageIndexEnable=index) as world:
        first = await world.producer.send("U0")  # undecided: what comes after it stays in memory
        one, two = [await world.producer.send(unique_id) for unique_id in ("U1", "U2")]
        await world.producer.end_oneway(one)
        await world.producer.end_oneway(two, ROLLBACK)
        await world.clock.advance(seconds=4)
        assert world.op_bodies() == [b"1,2,"]
        root = killed(world, tmp_path / "killed")
    async with shop(root, start_ms=world.clock.now_ms(), messageIndexEnable=index) as world:
        await world.rounds(1, seconds=2)  # for the index to be complete
        assert (await world.producer.end(one)).code == 0
        assert (await world.producer.end(two, ROLLBACK)).code == 0
        # An op message does not say which way: the index does.
        contradicted = await world.producer.end(one, ROLLBACK)
        assert contradicted.code == (1 if index == "true" else 0)
        contradicted = await world.producer.end(two)
        assert contradicted.code == (1 if index == "true" else 0)
        assert world.bodies() == [b"x"]
        await world.rounds()
        assert [world.producer.checked(i).unique_id for i in range(1)] == ["U0"]
        assert (await world.producer.end(first)).code == 0


@pytest.mark.spec("broker.13.18")
async def test_op_messages_of_both_forms_clear(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        for number in range(5):
            await world.producer.send(f"U{number}")
        store = world.features.store
        for body in (b"1", b"2,3,"):
            draft = op_draft(body, store.log.store_host, world.clock.now_ms())
            assert store.put(draft).status is PutStatus.PUT_OK
        root = killed(world, tmp_path / "killed")
    async with shop(root, start_ms=world.clock.now_ms()) as world:
        await world.rounds()
        questions = range(len(world.producer.check_backs))
        assert [world.producer.checked(index).unique_id for index in questions] == ["U0", "U4"]


async def test_recovery_finds_an_obsolete_copy(tmp_path: Path) -> None:
    """Killed between the copy and the position: the message before it does not count any more."""
    async with shop(tmp_path) as world:
        sent = await world.producer.send("U1")
        await world.rounds(2)
        assert len(world.records(HALF)) == 3
        root = killed(world, tmp_path / "killed")
    offsets = root / "store/config/consumerOffset.json"
    offsets.unlink(missing_ok=True)
    offsets.with_name(offsets.name + ".bak").unlink(missing_ok=True)
    async with shop(root, start_ms=world.clock.now_ms()) as world:
        assert world.position() == (-1, -1)
        assert world.transactions.state.decisions.copies == {0: 2}
        await world.rounds(2)
        assert len(world.producer.check_backs) == 2
        assert len(world.records(HALF)) == 5
        # The producer decides by the name it knows, and the newest copy is cleared with it.
        assert (await world.producer.end(sent)).code == 0
        assert (await world.producer.end(world.producer.checked(), check=True)).code == 0
        assert world.bodies() == [b"x"]
        await world.rounds(2)
        assert len(world.producer.check_backs) == 2


async def test_the_outcome_of_an_evicted_message_is_found_in_the_index(tmp_path: Path) -> None:
    async with shop(tmp_path, transactionCheckMax="1") as world:
        sent = {
            name: await world.producer.send(name) for name in ("committed", "undone", "given up")
        }
        assert (await world.producer.end(sent["committed"])).code == 0
        assert (await world.producer.end(sent["undone"], ROLLBACK)).code == 0
        await world.rounds(3)
        assert len(world.records(GIVEN_UP)) == 1
        await settled(world)
        assert world.position() == (len(world.records(HALF)), 1)
        assert world.transactions.is_idle
    async with shop(tmp_path, start_ms=world.clock.now_ms()) as world:
        assert world.transactions.is_idle
        for name, decision, remark in [
            ("committed", COMMIT, ""),
            ("committed", ROLLBACK, "half already committed"),
            ("undone", ROLLBACK, ""),
            ("undone", COMMIT, "half already rolled back"),
            ("given up", COMMIT, ""),  # the first decision about it
            ("given up", COMMIT, ""),
        ]:
            answer = await world.producer.end(sent[name], decision)
            assert answer.code == (1 if remark else 0)
            assert (answer.remark or "").startswith(remark)
        assert world.bodies() == [b"x", b"x"]
        assert world.transactions.counts.committed["T"] == 1
        (kept,) = world.records(GIVEN_UP)
    async with shop(tmp_path, start_ms=world.clock.now_ms()) as world:
        # It was committed after all, so it gets no second chance.
        ext = {"topic": GIVEN_UP, "msgId": kept.offset_id}
        answer = await world.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext)
        assert answer.code == 1
        assert (answer.remark or "").endswith("half already committed")


async def test_a_message_that_was_given_up_can_be_committed_after_its_immunity(
    tmp_path: Path,
) -> None:
    async with shop(tmp_path, transactionCheckMax="1") as world:
        await world.producer.send("U0", CHECK_IMMUNITY_TIME_IN_SECONDS="1000")
        sent = await world.producer.send("U1", CHECK_IMMUNITY_TIME_IN_SECONDS="40")
        await world.rounds(2)
        assert len(world.producer.check_backs) == 1
        assert (await world.producer.end(sent)).code == 604  # the answer counts
        await world.rounds()
        (kept,) = world.records(GIVEN_UP)
        assert (await world.producer.end(sent, ROLLBACK)).code == 604  # it would be forgotten
        for _ in range(2):
            assert (await world.producer.end(sent)).code == 0
        assert (await world.producer.end(sent, ROLLBACK)).code == 1
        assert world.bodies() == [b"x"]
        root = killed(world, tmp_path / "killed")
    now_ms = world.clock.now_ms()
    for each in (root, tmp_path):
        async with shop(each, start_ms=now_ms) as world:
            assert (await world.producer.end(sent)).code == 0
            ext = {"topic": GIVEN_UP, "msgId": kept.offset_id}
            assert (await world.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext)).code == 1
            await world.rounds(2)
            assert world.bodies() == [b"x"]


async def test_a_resumed_message_is_decided_by_the_answer_to_a_check_back(tmp_path: Path) -> None:
    async with shop(tmp_path, transactionCheckMax="1") as world:
        sent = await world.producer.send("U1", CHECK_IMMUNITY_TIME_IN_SECONDS="40")
        await world.rounds(3)
        (kept,) = world.records(GIVEN_UP)
        ext = {"topic": GIVEN_UP, "msgId": kept.offset_id}
        assert (await world.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext)).code == 0
        assert (await world.producer.end(sent)).code == 604
        await world.rounds()
        assert (await world.producer.end(world.producer.checked(), check=True)).code == 0
        assert (await world.producer.end(sent)).code == 0
        assert world.bodies() == [b"x"]


async def test_without_an_index_the_outcome_is_an_error(tmp_path: Path) -> None:
    async with shop(tmp_path, messageIndexEnable="false") as world:
        sent = await world.producer.send("U1")
        assert (await world.producer.end(sent)).code == 0
        await settled(world)
    now_ms = world.clock.now_ms()
    async with shop(tmp_path, start_ms=now_ms, messageIndexEnable="false") as world:
        answer = await world.producer.end(sent)
        assert answer.code == 1
        assert (answer.remark or "").startswith("the broker does not know any more whether")
        assert world.bodies() == [b"x"]
    async with shop(tmp_path, start_ms=now_ms) as world:
        index = world.features.store.index
        assert index is not None
        index.mark_behind(0)
        assert (await world.producer.end(sent)).code == 2


async def test_a_transaction_type_set_by_a_producer_is_not_a_commit(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        sent = await world.producer.send("U1")
        assert sent.log_offset == 0
        # Of type "commit", and without half message: it names the record at 0.
        assert (await world.send("T", properties="UNIQ_KEY\x01O\x02", f="8")).code == 0
        root = killed(world, tmp_path / "killed")
    async with shop(root, start_ms=world.clock.now_ms()) as world:
        await world.rounds()
        assert len(world.producer.check_backs) == 1
        assert (await world.producer.end(sent)).code == 0
        assert world.bodies() == [b"x"]


async def test_committed_offsets_beyond_the_queues_are_corrected(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        for topic in (HALF, OP):
            world.features.groups.offsets.commit(GROUP, topic, 0, 1_000)
    async with shop(tmp_path, start_ms=world.clock.now_ms()) as world:
        sent = await world.producer.send("U1")
        await world.rounds()
        assert len(world.producer.check_backs) == 1
        assert (await world.producer.end(sent)).code == 0
        await settled(world)
        assert world.position() == (2, 1)


async def test_a_mark_bounds_what_a_start_has_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "UNMARKED_SIZE_MAX", 2_000)
    async with shop(tmp_path) as world:
        sent = await world.producer.send("U1", CHECK_IMMUNITY_TIME_IN_SECONDS="1000")
        await world.rounds()
        assert world.op_bodies() == []
        for _ in range(20):
            await world.send("Other", b"y" * 100)
        await world.rounds()
        assert world.op_bodies() == [b"-1,"]
        mark = world.records(OP)[0].log_offset
        root = killed(world, tmp_path / "killed")
    async with shop(root, start_ms=world.clock.now_ms()) as world:
        assert world.transactions.state.last_op_log_offset == mark
        assert (await world.producer.end(sent)).code == 0
        await settled(world)
        assert world.bodies() == [b"x"]
        assert world.position() == (1, 2)
