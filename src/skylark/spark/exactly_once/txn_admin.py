"""Administration of exactly-once sinks, for ``skylark txn``: list, abandon, settle, forget, repair.

* **list** batches that are undecided, or decided and not done; or all batches.
* **abandon** a sink whose driver will never return: its undecided half messages are rolled back,
  and a driver that returns nevertheless cannot commit them.
* **settle** by hand which batch is the last one in the topic, where log and memory cannot say it.
* **forget** a sink that will never come back, and with it the group that remembers its last batch.
* **repair** half messages for which brokers have stopped check-backs, because no resolver ran for a
  long time. They are in TRANS_CHECK_MAX_TIME_TOPIC. Those with a decision to commit are resumed
  (RESUME_CHECK_HALF_MESSAGE): the broker sends check-backs again, and a resolver answers. A half
  message that was committed before is not committed again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from skylark.admin.errors import NotFoundError
from skylark.client.consumer.range_reader import fixed_address, pull_range
from skylark.client.core.broker_calls import make_request
from skylark.client.core.client_message import TxState
from skylark.core.errors import BrokerError, ConfigError
from skylark.core.names import CHECK_MAX_TIME_TOPIC
from skylark.spark.exactly_once.txn_log import Entry, TxnLog
from skylark.spark.exactly_once.txn_log_records import (
    IDENTITY_PROPERTY,
    RESOLVER_GROUP,
    Abandon,
    Decision,
    Done,
    Manifest,
)
from skylark.spark.resolver import OutcomeLookup
from skylark.spark.sink.sink_client import SinkClient
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode
from skylark.wire.headers.txn import ResumeCheckHalfMessageRequestHeader
from skylark.wire.message import MessageRecord, iter_records
from skylark.wire.properties import PROPERTY_PGROUP

RESUME_FAILED: Final = "Put message back"


class BatchState(msgspec.Struct, kw_only=True):
    """State of one batch of one sink, by the log."""

    sink: str
    batch: int
    state: str = "undecided"  #: undecided, decided, done, abandoned
    attempts: int = 0  #: task attempts that have stored all their rows
    rows: int = 0  #: of the decision; before there is one, of all attempts
    since_ms: int = 0  #: time of the last record


class RepairReport(msgspec.Struct, kw_only=True):
    """Figures of a repair."""

    resumed: int = 0  #: check-backs start again, and a resolver commits them
    committed_before: int = 0
    losers: int = 0  #: decided to be rolled back: nothing to do
    undecided: int = 0
    foreign: int = 0  #: not of a Spark sink


async def list_batches(client: SinkClient, *, with_done: bool = False) -> list[BatchState]:
    """The batches in the log, by sink and number."""
    found: dict[tuple[str, int], BatchState] = {}
    try:
        async for entry in TxnLog(client, make=False).everything():
            _add_record(found, entry)
    except NotFoundError:
        return []
    states = [found[key] for key in sorted(found)]
    return [state for state in states if with_done or state.state in ("undecided", "decided")]


def _add_record(found: dict[tuple[str, int], BatchState], entry: Entry) -> None:
    record = entry.record
    key = (record.sink, record.batch)
    state = found.setdefault(key, BatchState(sink=record.sink, batch=record.batch))
    state.since_ms = max(state.since_ms, entry.time_ms)
    match record:
        case Manifest():
            state.attempts += record.chunk == 0
            if state.state == "undecided":
                state.rows += len(record.targets)
        case Decision():
            if state.state == "undecided":
                state.state = "decided"
                state.rows = sum(winner.count for winner in record.winners)
        case Done():
            state.state = "done"
        case Abandon():
            for (sink, batch), other in found.items():
                if sink == record.sink and batch >= record.batch and other.state == "undecided":
                    other.state = "abandoned"


async def abandon(client: SinkClient, sink: str) -> Abandon:
    """Abandon the undecided batches of a sink; raises NotFoundError if the log has none."""
    txn_log = TxnLog(client, make=False)
    batches = [state for state in await list_batches(client, with_done=True) if state.sink == sink]
    if not batches:
        raise NotFoundError(f"no exactly-once sink {sink} is known", hint="see skylark txn list")
    batch_records = await txn_log.batch_records(sink)
    decided = [record.batch for record in batch_records if isinstance(record, Decision)]
    abandoned = Abandon(sink=sink, batch=max(decided, default=-1) + 1)
    await txn_log.append(abandoned)
    return abandoned


async def settle(client: SinkClient, sink: str, written_through: int) -> None:
    """Let this be the last batch of a sink that is in the topic; -1: none is.

    Raises ConfigError if the log says otherwise.
    """
    txn_log = TxnLog(client)  # its log may be lost as a whole
    known = (await txn_log.known_by_log([sink]))[sink]
    if known.deciding > written_through:
        raise ConfigError(
            f"batch {known.deciding} of sink {sink} was decided: the log says so",
            hint="nothing has to be settled: the query goes on by itself",
        )
    await txn_log.memories.settle(await txn_log.queue_of(sink), sink, written_through)


async def forget(client: SinkClient, sink: str) -> None:
    """Delete the memory of a sink; raises NotFoundError if it has none."""
    txn_log = TxnLog(client, make=False)
    queue = await txn_log.queue_of(sink)
    if sink not in await txn_log.memories.sinks(queue):
        raise NotFoundError(f"no exactly-once sink {sink} is remembered")
    await txn_log.memories.forget(queue, sink)


async def repair(client: SinkClient, *, dry_run: bool = False) -> RepairReport:
    """Resume check-backs for half messages that have a decision to commit."""
    lookup = OutcomeLookup(TxnLog(client, make=False), client.clock)
    report = RepairReport()
    group = client.namespace.wrap(RESOLVER_GROUP)
    async for address, record in _unchecked_halves(client):
        text = record.properties.get(IDENTITY_PROPERTY)
        if text is None or record.properties.get(PROPERTY_PGROUP) != group:
            report.foreign += 1
            continue
        match await lookup.outcome(text):
            case TxState.UNKNOWN:
                report.undecided += 1
            case TxState.ROLLBACK:
                report.losers += 1
            case TxState.COMMIT if dry_run or await _resume(client, address, record):
                report.resumed += 1
            case TxState.COMMIT:
                report.committed_before += 1
    return report


async def _resume(client: SinkClient, address: str, record: MessageRecord) -> bool:
    """Ask a broker to resume check-backs; False if the half message was committed before."""
    header = ResumeCheckHalfMessageRequestHeader(
        topic=CHECK_MAX_TIME_TOPIC, msg_id=record.offset_id
    )
    try:
        await client.session.call(
            address, make_request(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)
        )
    except BrokerError as error:
        if error.remark.startswith(RESUME_FAILED):
            return False
        raise
    return True


async def _unchecked_halves(client: SinkClient) -> AsyncIterator[tuple[str, MessageRecord]]:
    for broker, address in (await client.session.masters()).items():
        queue = MessageQueue(topic=CHECK_MAX_TIME_TOPIC, broker_name=broker, queue_id=0)
        calls = client.link.calls
        first = await calls.min_offset(address, queue)
        end = await calls.max_offset(address, queue)
        pulls = pull_range(calls, fixed_address(address), queue, max(first, 0), end, client.clock)
        try:
            async for pulled in pulls:
                for record in iter_records(pulled.body):
                    yield address, record
        finally:
            await pulls.aclose()
