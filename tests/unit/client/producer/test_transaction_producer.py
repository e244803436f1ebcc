"""Transactions: halves, outcomes, and brokers that ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skylark.client.core.client_message import Message, MessageExt, SendStatus, TxState
from skylark.client.core.hooks import EndTransactionContext
from skylark.client.producer import transaction_producer as txn_producer
from skylark.core.errors import ClientError, ClientStateError, SendFailedError
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.message import encode_record, pack_host
from skylark.wire.properties import encode_properties, parse_properties
from tests.unit.client.producer_world import (
    MESSAGE,
    OFFSET_ID,
    Script,
    cluster,
    scripted,
    stored,
)
from tests.unit.client.scripted import Stumbles


class Listener:
    """Does and says what it is told."""

    def __init__(self, outcome: Any = TxState.COMMIT, checked: Any = TxState.COMMIT) -> None:
        self.outcome = outcome
        self.checked = checked
        self.executed: list[tuple[Message, Any]] = []
        self.checks: list[MessageExt] = []

    async def execute(self, message: Message, arg: Any) -> TxState | None:
        self.executed.append((message, arg))
        return self._say(self.outcome)

    async def check(self, message: MessageExt) -> TxState | None:
        self.checks.append(message)
        return self._say(self.checked)

    def _say(self, outcome: Any) -> TxState | None:
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is None or isinstance(outcome, TxState)
        return outcome


def ends(script: Script) -> list[Command]:
    return [
        request
        for server in script.brokers.values()
        for request in server.of(RequestCode.END_TRANSACTION)
    ]


async def end_of(script: Script) -> dict[str, str]:
    """The header of the only outcome that was sent, with its remark."""
    await script.clock.drain()
    (request,) = ends(script)
    assert request.is_oneway
    return {**(request.ext or {}), "remark": request.remark or ""}


def half_record(**properties: str) -> bytes:
    return encode_record(
        topic="T",
        body=b"x",
        properties=encode_properties({"PGROUP": "pg", "TRAN_MSG": "true", **properties}).encode(),
        queue_id=1,
        queue_offset=2,
        log_offset=3,
        sys_flag=0,
        born_timestamp=1,
        born_host=pack_host("10.0.0.1", 1),
        store_timestamp=2,
        store_host=pack_host("10.0.0.2", 2),
        reconsume_times=0,
        flag=0,
    )


async def ask(script: Script, broker: str = "a", unique_id: str = "U") -> None:
    """The broker asks how a transaction ended."""
    ext = {
        "topic": "T",
        "tranStateTableOffset": "5",
        "commitLogOffset": "6",
        "transactionId": "tx",
        "bname": broker,
    }
    code = RequestCode.CHECK_TRANSACTION_STATE
    body = half_record(UNIQ_KEY=unique_id)
    for connection in script.brokers[broker].connections:
        connection.oneway(Command(code=code, ext=ext, body=body))
    await script.clock.drain()


# ---- the listener's way --------------------------------------------------------------------------


async def test_a_transaction_is_a_half_message_and_an_outcome(tmp_path: Path) -> None:
    listener = Listener()
    async with scripted(tmp_path, "a", listener=listener) as script:
        script.answer(stored(transactionId="server-id"))
        result = await script.producer.send_in_transaction(Message("T", b"x", tag="A"), "arg")
        (half,) = script.sent()
        header = half.ext or {}
        assert (half.code, header["f"]) == (310, "4")
        properties = parse_properties(header["i"])
        assert (properties["TRAN_MSG"], properties["PGROUP"], properties["TAGS"]) == (
            "true",
            "pg",
            "A",
        )
        assert result.state is TxState.COMMIT
        ((message, arg),) = listener.executed
        assert arg == "arg"
        assert message.properties == {
            "UNIQ_KEY": result.sent.msg_id,
            "__transactionId__": "server-id",
        }
        assert await end_of(script) == {
            "topic": "T",
            "producerGroup": "pg",
            "tranStateTableOffset": "5",
            "commitLogOffset": "123",
            "commitOrRollback": "8",
            "fromTransactionCheck": "false",
            "msgId": result.sent.msg_id,
            "transactionId": "server-id",
            "bname": "a",
            "remark": "",
        }
        assert result.sent.offset_msg_id == OFFSET_ID


@pytest.mark.parametrize(
    ("outcome", "state", "number"),
    [
        (TxState.COMMIT, TxState.COMMIT, "8"),
        (TxState.ROLLBACK, TxState.ROLLBACK, "12"),
        (TxState.UNKNOWN, TxState.UNKNOWN, "0"),
        (None, TxState.UNKNOWN, "0"),
    ],
)
async def test_every_outcome_has_its_number(
    tmp_path: Path, outcome: TxState | None, state: TxState, number: str
) -> None:
    async with scripted(tmp_path, "a", listener=Listener(outcome)) as script:
        assert (await script.producer.send_in_transaction(MESSAGE)).state is state
        assert (await end_of(script))["commitOrRollback"] == number


@pytest.mark.spec("client.8.18")
async def test_a_listener_that_raises_leaves_it_open(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a", listener=Listener(ValueError("broken"))) as script:
        result = await script.producer.send_in_transaction(MESSAGE)
        assert result.state is TxState.UNKNOWN
        end = await end_of(script)
        assert end["commitOrRollback"] == "0"
        assert end["remark"] == ("executeLocalTransactionBranch exception: ValueError('broken')")


@pytest.mark.spec("client.8.18")
async def test_a_half_message_that_is_not_safe_is_rolled_back(tmp_path: Path) -> None:
    listener = Listener()
    async with scripted(tmp_path, "a", listener=listener) as script:
        script.answer(stored(12))
        result = await script.producer.send_in_transaction(MESSAGE)
        assert result.sent.status is SendStatus.FLUSH_SLAVE_TIMEOUT
        assert result.state is TxState.ROLLBACK
        assert listener.executed == []
        assert (await end_of(script))["commitOrRollback"] == "12"


async def test_a_half_message_that_cannot_be_sent_is_an_error(tmp_path: Path) -> None:
    listener = Listener()
    async with scripted(tmp_path, "a", listener=listener) as script:
        script.answer(13)
        with pytest.raises(ClientError, match="send message Exception") as raised:
            await script.producer.send_in_transaction(MESSAGE)
        assert raised.value.response_code == 13
        await script.clock.drain()
        assert (listener.executed, ends(script)) == ([], [])


async def test_nobody_to_ask_is_an_error(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        with pytest.raises(ClientError, match="the producer has no transaction_listener"):
            await script.producer.send_in_transaction(MESSAGE)
        with pytest.raises(ClientError, match="transaction_checker"):
            async with script.producer.transaction(MESSAGE):
                pytest.fail("the block must not run")
        assert script.sent() == []


async def test_an_outcome_that_gets_lost_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted(tmp_path, "a", listener=Listener()) as script:
        script.answer(stored(msgId="no id"))
        assert (await script.producer.send_in_transaction(MESSAGE)).state is TxState.COMMIT
        assert ends(script) == []
    assert "a check-back will follow" in caplog.text


# ---- the block's way -----------------------------------------------------------------------------


async def commits(script: Script, block: Callable[[Any], None]) -> None:
    async with script.producer.transaction(MESSAGE) as tx:
        assert tx.id == tx.sent.msg_id
        assert tx.state is None
        block(tx)


def fail(_: Any) -> None:
    raise LookupError("no such order")


@pytest.mark.parametrize(
    ("block", "number", "remark"),
    [
        (lambda tx: None, "8", ""),
        (lambda tx: tx.rollback(), "12", ""),
        (lambda tx: tx.unknown(), "0", ""),
        (fail, "12", "executeLocalTransactionBranch exception: LookupError('no such order')"),
    ],
)
async def test_a_block_commits_or_rolls_back(
    tmp_path: Path, block: Callable[[Any], None], number: str, remark: str
) -> None:
    async with scripted(tmp_path, "a") as script:
        script.producer.transaction_checker(lambda message: TxState.UNKNOWN)
        if block is fail:
            with pytest.raises(LookupError):
                await commits(script, block)
        else:
            await commits(script, block)
        end = await end_of(script)
        assert (end["commitOrRollback"], end["remark"]) == (number, remark)


@pytest.mark.parametrize("decide", ["rollback", "unknown"])
async def test_a_decision_after_the_block_is_refused(tmp_path: Path, decide: str) -> None:
    async with scripted(tmp_path, "a") as script:
        script.producer.transaction_checker(lambda message: TxState.UNKNOWN)
        async with script.producer.transaction(MESSAGE) as tx:
            pass
        with pytest.raises(ClientStateError, match="has ended with COMMIT"):
            getattr(tx, decide)()
        assert tx.state is TxState.COMMIT
        assert (await end_of(script))["commitOrRollback"] == "8"


async def test_a_block_does_not_run_on_unsafe_ground(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a", listener=Listener()) as script:
        script.answer(stored(11))
        with pytest.raises(SendFailedError, match="SLAVE_NOT_AVAILABLE: rolled back"):
            async with script.producer.transaction(MESSAGE):
                pytest.fail("the block must not run")
        assert (await end_of(script))["commitOrRollback"] == "12"


async def test_a_transaction_runs_once_and_may_be_timed(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a", listener=Listener()) as script:
        transaction = script.producer.transaction(MESSAGE, delay=5, timeout=1)
        with pytest.raises(ClientError, match="has not begun"):
            _ = transaction.sent
        async with transaction:
            pass
        with pytest.raises(ClientError, match="can be used once"):
            async with transaction:
                pass
        (half,) = script.sent()
        assert parse_properties((half.ext or {})["i"])["TIMER_DELAY_MS"] == "5000"


# ---- checks --------------------------------------------------------------------------------------


@pytest.mark.spec("client.8.18")
async def test_a_check_is_answered_to_whoever_asks(tmp_path: Path) -> None:
    listener = Listener(checked=TxState.ROLLBACK)
    async with scripted(tmp_path, listener=listener, topics=["T"]) as script:
        await ask(script, "b")
        (checked,) = listener.checks
        assert (checked.msg_id, checked.transaction_id, checked.topic) == ("U", "U", "T")
        assert await end_of(script) == {
            "topic": "T",
            "producerGroup": "pg",
            "tranStateTableOffset": "5",
            "commitLogOffset": "6",
            "commitOrRollback": "12",
            "fromTransactionCheck": "true",
            "msgId": "U",
            "transactionId": "tx",
            "bname": "b",
            "remark": "",
        }
        assert len(script.brokers["b"].of(RequestCode.END_TRANSACTION)) == 1


async def test_a_checker_that_raises_leaves_it_open(tmp_path: Path) -> None:
    listener = Listener(checked=KeyError("k"))
    async with scripted(tmp_path, "a", listener=listener, topics=["T"]) as script:
        await ask(script)
        end = await end_of(script)
        assert end["commitOrRollback"] == "0"
        assert end["remark"] == "checkLocalTransactionState Exception: KeyError('k')"


async def test_without_a_checker_the_broker_has_to_ask_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted(tmp_path, "a", topics=["T"]) as script:
        await ask(script)
        assert ends(script) == []
    assert "has no checker" in caplog.text


async def test_a_plain_function_checks_in_a_thread(tmp_path: Path) -> None:
    loop, checked = asyncio.get_running_loop(), asyncio.Event()
    async with scripted(tmp_path, "a", topics=["T"]) as script:

        @script.producer.transaction_checker
        def check(message: MessageExt) -> TxState:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            loop.call_soon_threadsafe(checked.set)
            return TxState.COMMIT

        await ask(script)
        async with asyncio.timeout(10):  # real time: the thread does not know the virtual one
            await checked.wait()
            while not ends(script):
                await script.clock.drain()
        assert (await end_of(script))["commitOrRollback"] == "8"


async def test_checks_wait_in_line_and_not_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(txn_producer, "CHECKS_WAITING_MAX", 3)
    gate = asyncio.Event()
    running: list[str] = []
    async with scripted(tmp_path, "a", topics=["T"]) as script:

        @script.producer.transaction_checker
        async def check(message: MessageExt) -> TxState:
            running.append(message.msg_id)
            await gate.wait()
            return TxState.COMMIT

        for number in range(6):
            await ask(script, unique_id=str(number))
        assert running == ["0"]
        gate.set()
        await script.clock.drain()
        assert running == ["0", "1", "2", "3"]
        assert len(ends(script)) == 4
    assert caplog.text.count("one more is dropped") == 2


async def test_a_hook_that_raises_does_not_hold_up_the_checks_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook, gate = Stumbles(RequestCode.END_TRANSACTION), asyncio.Event()
    async with scripted(tmp_path, "a", topics=["T"], given={"rpc_hooks": [hook]}) as script:

        @script.producer.transaction_checker
        async def check(message: MessageExt) -> TxState:
            await gate.wait()
            if message.msg_id == "1":
                hook.codes.clear()
            return TxState.COMMIT

        for number in range(2):
            await ask(script, unique_id=str(number))
        gate.set()
        assert (await end_of(script))["msgId"] == "1"
    assert "a check-back failed" in caplog.text


async def test_a_checker_that_hangs_does_not_keep_the_producer_alive(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a", topics=["T"]) as script:

        @script.producer.transaction_checker
        async def check(message: MessageExt) -> TxState:
            await asyncio.Event().wait()
            return TxState.COMMIT

        await ask(script)
        await script.world.finish(script.producer.stop())
        assert ends(script) == []


async def test_hooks_hear_how_it_ended(tmp_path: Path) -> None:
    class Hook:
        def __init__(self) -> None:
            self.seen: list[EndTransactionContext] = []

        def end_transaction(self, context: EndTransactionContext) -> None:
            self.seen.append(context)

    hook = Hook()
    async with scripted(tmp_path, "a", hooks=(hook,), listener=Listener()) as script:
        result = await script.producer.send_in_transaction(MESSAGE)
        await ask(script)
        own, asked = hook.seen
        assert (own.state, own.from_check, own.msg_id) == (
            TxState.COMMIT,
            False,
            result.sent.msg_id,
        )
        assert (asked.state, asked.from_check, asked.msg_id) == (TxState.COMMIT, True, "U")
        assert asked.broker_address == script.brokers["a"].address


# ---- a real cluster ------------------------------------------------------------------------------


async def test_messages_appear_when_their_transaction_has_ended_well(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        known: dict[str, TxState] = {}
        asked: list[str] = []

        @c.producer.transaction_checker
        async def check(message: MessageExt) -> TxState:
            assert message.transaction_id is not None
            asked.append(message.transaction_id)
            return known.get(message.transaction_id, TxState.ROLLBACK)

        async with c.producer.transaction(Message("T", b"good")):
            assert c.bodies("T") == []
        with pytest.raises(LookupError):
            async with c.producer.transaction(Message("T", b"bad")):
                raise LookupError
        async with c.producer.transaction(Message("T", b"open")) as tx:
            known[tx.id] = TxState.COMMIT
            tx.unknown()
        async with c.producer.transaction(Message("T", b"lost")) as lost:
            lost.unknown()
        await c.clock.drain()
        assert c.bodies("T") == [b"good"]
        await c.clock.advance(seconds=120)
        assert sorted(c.bodies("T")) == [b"good", b"open"]
        assert sorted(set(asked)) == sorted([tx.id, lost.id])
