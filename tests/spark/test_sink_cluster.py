"""The sink against a real broker, without Spark: its objects pickled, its methods called in order.

Crashes are made by not calling what a dead process would not have called, and by failures in the
middle of the commits; the drivers that follow know nothing but what the cluster tells them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    DataType,
    MapType,
    StringType,
)

from skylark import ClientOptions, DeadLetter, Message, MessageExt, TxState
from skylark.admin.errors import NotFoundError
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.client.producer.queue_selector import shard_index
from skylark.core.errors import ConfigError, NoNameServerError
from skylark.core.names import HALF_TOPIC, TRANSACTION_GROUP
from skylark.spark.exactly_once import half_message_completion as halves
from skylark.spark.exactly_once import half_message_sender as half_sending
from skylark.spark.exactly_once.commit_protocol import AbandonedError
from skylark.spark.exactly_once.half_message_completion import (
    CompletionCounts,
    HalfLocation,
    HalfMessageCompleter,
)
from skylark.spark.exactly_once.txn_admin import abandon, list_batches
from skylark.spark.exactly_once.txn_log import TxnLog
from skylark.spark.exactly_once.txn_log_records import identity_prefix
from skylark.spark.resolver import OutcomeLookup, Resolver
from skylark.spark.sink.row_encoder import BadRowError
from skylark.spark.sink.sink_client import NotIdempotentError, SinkClient
from skylark.spark.sink.sink_writer import SinkMessage, batch_writer, stream_writer
from skylark.sync import Admin, Producer, PushConsumer
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumeFromWhere
from skylark.wire.codes import RequestCode
from tests.spark.sink_site import (
    BODY,
    QUICK_CHECKS,
    CrashError,
    Query,
    bodies,
    client_of,
    count,
    crash_after,
    read,
    schema,
    until,
    writer,
)
from tests.support.up import cluster

PROPERTIES = pa.map_(pa.string(), pa.string())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a cluster that asks about half messages soon and often."""
    with cluster(tmp_path_factory.mktemp("cluster"), *QUICK_CHECKS) as namesrv:
        yield namesrv


@pytest.fixture(scope="module")
def resolver(site: str) -> Iterator[Resolver]:
    portal = shared_portal()
    found = Resolver(ClientOptions(namesrv=site))
    portal.call(found.start())
    yield found
    portal.call(found.stop())


@pytest.fixture
def make_topic(site: str) -> Callable[[str], str]:
    def make(name: str, queue_count: int = 4) -> str:
        with Admin(ClientOptions(namesrv=site)) as admin:
            admin.topics.create(name, queue_count=queue_count)
        return name

    return make


# ---- helpers -------------------------------------------------------------------------------------


def half_queue_is_empty(site: str) -> bool:
    """Whether nothing is left undecided in the half queue."""
    client = client_of(site)
    ((broker, address),) = shared_portal().call(client.session.masters()).items()
    queue = MessageQueue(topic=HALF_TOPIC, broker_name=broker, queue_id=0)
    calls = client.link.calls
    reached = shared_portal().call(calls.query_offset(address, TRANSACTION_GROUP, queue))
    return reached == shared_portal().call(calls.max_offset(address, queue))


# ---- at least once -------------------------------------------------------------------------------


@pytest.mark.spec("spark.9.25")
def test_rows_arrive_with_everything_and_in_order(
    site: str, make_topic: Callable[[str], str]
) -> None:
    topic = make_topic("Everything")
    total, keys = 20_000, [f"order-{n}" for n in range(37)]
    types: dict[str, DataType] = {
        "body": StringType(),
        "keys": StringType(),
        "tags": StringType(),
        "properties": MapType(StringType(), StringType()),
        "shardingKey": StringType(),
    }
    rows = [
        {
            "body": f"{n}",
            "keys": f"key-{n}",
            "tags": f"Tag{n % 3}",
            "properties": [("n", f"{n}"), ("TRAN_MSG", "true")],
            "shardingKey": keys[n % len(keys)] if n % 2 else None,
        }
        for n in range(total)
    ]
    table = pa.Table.from_pylist(
        rows,
        pa.schema(
            [("body", pa.string()), ("keys", pa.string()), ("tags", pa.string()),
             ("properties", PROPERTIES), ("shardingKey", pa.string())]
        ),
    )  # fmt: skip
    message = writer(site, types, topic=topic).write(iter(table.to_batches(5_000)))
    assert isinstance(message, SinkMessage)
    assert (message.written.count, message.written.bad) == (total, 0)
    assert sum(queue.count for queue in message.written.queues.values()) == total
    found = read(site, topic)
    assert sorted(int(row["body"]) for row in found) == list(range(total))
    lanes: dict[str, list[int]] = {}
    for row in found:
        n, properties = int(row["body"]), dict(row["properties"])
        assert (row["keys"], row["tags"], properties["n"]) == (f"key-{n}", f"Tag{n % 3}", f"{n}")
        assert "TRAN_MSG" not in properties
        if n % 2:
            key = properties["__SHARDINGKEY"]
            assert row["queueId"] == shard_index(key, 4)
            lanes.setdefault(key, []).append(n)
    for key, numbers in lanes.items():
        assert numbers == sorted(numbers), key
        assert len(numbers) == len({*numbers})
    assert lanes.keys() == {*keys}


@pytest.mark.spec("spark.9.27")
def test_bad_rows(site: str, make_topic: Callable[[str], str]) -> None:
    topic, other = make_topic("BadRows"), make_topic("BadRowLetters")
    types: dict[str, DataType] = {
        "body": BinaryType(), "properties": MapType(StringType(), StringType()),
    }  # fmt: skip
    rows: list[tuple[bytes | None, Any]] = [
        (b"good", None),
        (None, None),
        (b"x" * (5 << 20), None),
        (b"reserved", [("TRAN_MSG", "true")]),
        (b"good too", [("a", "b")]),
    ]

    def batches() -> Iterator[pa.RecordBatch]:
        columns = [
            pa.array([body for body, _ in rows], pa.binary()),
            pa.array([properties for _, properties in rows], PROPERTIES),
        ]
        return iter([pa.RecordBatch.from_arrays(columns, names=["body", "properties"])])

    strict = {"topic": topic, "reservedProperties": "fail"}
    with pytest.raises(BadRowError, match=r"row 1 of partition 0 .* body is null"):
        writer(site, types, **strict).write(batches())
    assert count(site, topic) == Counter()
    skipped = writer(site, types, **strict, onBadRow="skip").write(batches())
    assert (skipped.written.count, skipped.written.bad) == (2, 3)
    assert count(site, topic) == Counter([b"good", b"good too"])
    letters = writer(site, types, **strict, onBadRow="dlq", badRowTopic=other).write(batches())
    assert (letters.written.count, letters.written.bad) == (2, 3)
    found = sorted(read(site, other), key=lambda row: len(row["body"]))
    assert [len(row["body"]) for row in found] == [4, 8, 64 * 1024]
    reasons = [dict(row["properties"])["BAD_ROW_REASON"] for row in found]
    assert [reason[:25] for reason in reasons] == [
        "the body is null or empty",
        "a property has a name of ",
        "the body is over 4194304 ",
    ]


def test_dead_letters_go_back_to_their_group_after_a_change(
    site: str, make_topic: Callable[[str], str]
) -> None:
    """What a query over ``%DLQ%group`` writes to ``%RETRY%group`` reaches that group alone."""
    topic, options = make_topic("Mended"), ClientOptions(namesrv=site)
    got: dict[str, list[tuple[bytes, str, int]]] = {"mended-a": [], "mended-b": []}
    dies = True

    def consumer(group: str) -> PushConsumer:
        made = PushConsumer(
            group, options, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        )

        @made.subscribe(topic)
        def handle(message: MessageExt) -> None:
            if dies and group == "mended-a":
                raise DeadLetter
            got[group].append((message.body, message.topic, message.reconsume_times))

        return made

    with Producer("test", options) as producer:
        for n in range(10):
            producer.send(Message(topic, b"order %d" % n, "A"))
    with consumer("mended-a"), consumer("mended-b"):
        until(lambda: len(got["mended-b"]) == 10, "the other group got nothing")
        until(lambda: dead_letters(options, "mended-a") == 10, "no letter is dead")
        dies = False
        letters = read(site, "%DLQ%mended-a")
        rows = [
            {"body": row["body"].upper(), "tags": row["tags"], "properties": row["properties"]}
            for row in letters
        ]
        table = pa.Table.from_pylist(
            rows,
            pa.schema([("body", pa.binary()), ("tags", pa.string()), ("properties", PROPERTIES)]),
        )
        types: dict[str, DataType] = {
            **BODY, "tags": StringType(), "properties": MapType(StringType(), StringType()),
        }  # fmt: skip
        sink = writer(site, types, topic="%RETRY%mended-a", keepRetryTopic="true")
        assert sink.write(iter(table.to_batches())).written.count == 10
        until(lambda: len(got["mended-a"]) == 10, "the letters did not come back")
    assert sorted(got["mended-a"]) == [(b"ORDER %d" % n, topic, 0) for n in range(10)]
    assert len(got["mended-b"]) == 10


def dead_letters(options: ClientOptions, group: str) -> int:
    with Admin(options) as admin:
        return {each.group: each.count for each in admin.dlq.all()}.get(group, 0)


def test_a_missing_topic_and_a_missing_cluster_are_reported(site: str) -> None:
    with pytest.raises(NotFoundError, match="topic Nowhere does not exist"):
        writer(site, topic="Nowhere")
    with pytest.raises(NoNameServerError, match="start one, or correct the address"):
        writer("127.0.0.1:1", topic="T", outageTimeout="0")


@pytest.mark.spec("spark.9.24")
def test_overwriting_is_refused() -> None:
    for make in (batch_writer, stream_writer):
        with pytest.raises(ConfigError, match="a topic cannot be overwritten"):
            make({"nameserver": "127.0.0.1:1", "topic": "T"}, schema(BODY), True)


def test_an_empty_partition_is_written_too(site: str, make_topic: Callable[[str], str]) -> None:
    topic = make_topic("Empty")
    message = writer(site, topic=topic).write(iter([]))
    assert message.written.count == 0
    once = writer(site, topic=topic, delivery="exactly-once")
    once.commit([once.write(iter([]))])
    assert count(site, topic) == Counter()


# ---- exactly once --------------------------------------------------------------------------------


@pytest.mark.spec("spark.9.29")
def test_every_row_once_wherever_the_driver_dies(
    site: str, make_topic: Callable[[str], str], resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic("Crashes")
    queries = {name: Query(site, topic, f"crash-{name}") for name in "abcd"}

    queries["a"].run(0)
    lost = queries["a"].write(1)  # the driver dies before it decides
    assert [m.prepared.count for m in lost if isinstance(m, SinkMessage) and m.prepared] == [20, 20]
    queries["a"].run(1)

    for name, ends in (("b", 0), ("c", 17)):
        messages = queries[name].write(0)
        with monkeypatch.context() as patch:
            crash_after(patch, ends)
            with pytest.raises(CrashError):
                queries[name].commit(messages, 0)
        again = queries[name].write(0)  # Spark runs the batch again
        assert all(isinstance(m, SinkMessage) and m.prepared and m.prepared.already for m in again)
        queries[name].commit(again, 0)
        queries[name].run(1)

    queries["d"].run(0)
    queries["d"].commit(queries["d"].write(0), 0)  # done, but Spark does not know
    queries["d"].run(1)

    wanted: Counter[bytes] = Counter()
    for query in queries.values():
        wanted += query.everything(2)
    until(lambda: count(site, topic).total() >= wanted.total(), "rows are missing")
    until(lambda: half_queue_is_empty(site), "half messages stay undecided")
    assert count(site, topic) == wanted
    # Attempts that query a lost; the resolver of the cluster itself has answered some.
    assert resolver.answers[TxState.ROLLBACK] > 0


@pytest.mark.spec("spark.9.30")
def test_an_abort_after_a_failed_commit_undoes_nothing(
    site: str, make_topic: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic("Aborted")
    query = Query(site, topic, "aborted")
    messages = query.write(0)
    with monkeypatch.context() as patch:
        crash_after(patch, 10)
        with pytest.raises(CrashError):
            query.commit(messages, 0)
    query.abort(messages)
    until(lambda: count(site, topic).total() >= 10, "the first ends did not count")
    query.commit(query.write(0), 0)
    until(lambda: count(site, topic).total() >= 40, "rows are missing")
    assert count(site, topic) == query.everything(1)


def test_an_abort_after_a_failed_task_rolls_back(
    site: str, make_topic: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic("FailedTask")
    query = Query(site, topic, "failed-task")
    messages = query.write(0)
    ended: list[HalfLocation] = []
    real = HalfMessageCompleter.roll_back

    async def roll_back(self: HalfMessageCompleter, places: Any) -> None:
        ended.extend(places)
        await real(self, ended)

    monkeypatch.setattr(HalfMessageCompleter, "roll_back", roll_back)
    query.abort([messages[0], None])
    assert len(ended) == 20
    query.run(0)
    until(lambda: count(site, topic).total() >= 40, "rows are missing")
    assert count(site, topic) == query.everything(1)


def test_a_broker_that_takes_halves_one_by_one_only(
    site: str, make_topic: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older Skylark, or an Apache broker: they answer 3 to what they do not know."""
    sends, ends = SimpleNamespace(SEND_HALVES=9998), SimpleNamespace(END_HALVES=9999)
    ends.END_TRANSACTION = RequestCode.END_TRANSACTION
    monkeypatch.setattr(half_sending, "RequestCode", sends)
    monkeypatch.setattr(halves, "RequestCode", ends)
    topic = make_topic("OneByOne")
    query = Query(site, topic, "one-by-one")
    query.run(0)
    query.commit(query.write(0), 0)  # again, as after a restart
    assert count(site, topic) == query.everything(1)


@pytest.mark.spec("spark.9.32")
def test_a_commit_that_comes_too_late_is_left_to_the_resolver(
    site: str, make_topic: Callable[[str], str], resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic("Late")
    query = Query(site, topic, "late", txnImmunitySec="1")
    before = resolver.answers[TxState.UNKNOWN]
    messages = query.write(0)
    until(
        lambda: resolver.answers[TxState.UNKNOWN] > before, "no broker sent a check-back"
    )  # immunity is over
    outcomes: list[CompletionCounts] = []
    real = HalfMessageCompleter.commit

    async def commit(
        self: HalfMessageCompleter, places: Sequence[HalfLocation], *, ordered: bool
    ) -> CompletionCounts:
        outcomes.append(await real(self, places, ordered=ordered))
        return outcomes[-1]

    monkeypatch.setattr(HalfMessageCompleter, "commit", commit)
    query.commit(messages, 0)
    assert sum(outcome.handed_over for outcome in outcomes) > 0
    until(lambda: count(site, topic).total() >= 40, "rows are missing")
    until(lambda: half_queue_is_empty(site), "half messages stay undecided")
    assert count(site, topic) == query.everything(1)


@pytest.mark.spec("spark.9.33")
def test_answers_about_losers_undecided_and_foreign_halves(
    site: str, make_topic: Callable[[str], str]
) -> None:
    topic = make_topic("Answers")
    query = Query(site, topic, "answers")
    query.run(0)
    loser, winner = query.write(1), query.write(1)
    query.commit(winner, 1)
    query.write(2)
    client = client_of(site)
    lookup = OutcomeLookup(TxnLog(client), client.clock)

    def outcome(text: str | None) -> TxState:
        return shared_portal().call(lookup.outcome(text))

    def half(message: WriterCommitMessage | None, seq: int) -> str:
        assert isinstance(message, SinkMessage)
        assert message.prepared is not None
        prepared = message.prepared
        return f"{identity_prefix(prepared.sink, prepared.batch, 0, prepared.attempt)}{seq}"

    assert outcome(half(winner[0], 3)) is TxState.COMMIT
    assert outcome(half(loser[0], 3)) is TxState.ROLLBACK
    assert outcome("answers:2:0:0123456789abcdef:0") is TxState.UNKNOWN
    assert outcome("answers:1:0:0123456789abcdef:0") is TxState.ROLLBACK
    assert outcome("nobody:0:0:0123456789abcdef:0") is TxState.UNKNOWN
    assert outcome(None) is TxState.UNKNOWN
    assert outcome("not an identity") is TxState.UNKNOWN
    shared_portal().call(abandon(client, query.sink))  # lets the half queue drain


def test_a_batch_write_with_an_id_happens_once(site: str, make_topic: Callable[[str], str]) -> None:
    topic = make_topic("OneBatch")
    for _ in range(2):
        once = writer(site, topic=topic, delivery="exactly-once", txnId="daily-2026-11-15")
        once.commit([once.write(bodies([b"1", b"2", b"3"]))])
    until(lambda: count(site, topic).total() >= 3, "rows are missing")
    assert count(site, topic) == Counter([b"1", b"2", b"3"])


def test_an_abandoned_sink_can_neither_write_nor_commit(
    site: str, make_topic: Callable[[str], str], resolver: Resolver
) -> None:
    topic = make_topic("Abandoned")
    query = Query(site, topic, "abandoned", txnImmunitySec="1")
    query.run(0)
    messages = query.write(1)
    client, portal = client_of(site), shared_portal()
    states = {s.batch: s for s in portal.call(list_batches(client)) if s.sink == query.sink}
    assert {batch: (s.state, s.attempts, s.rows) for batch, s in states.items()} == {
        1: ("undecided", 2, 40)
    }
    assert portal.call(abandon(client, query.sink)).batch == 1
    with pytest.raises(AbandonedError, match="new checkpoint"):
        query.commit(messages, 1)
    with pytest.raises(AbandonedError):
        query.write(1)
    with pytest.raises(NotFoundError):
        portal.call(abandon(client, "never-seen"))
    until(lambda: half_queue_is_empty(site), "half messages stay undecided")
    assert count(site, topic) == query.everything(1)
    assert resolver.answers[TxState.ROLLBACK] > 0


def test_a_broker_that_commits_twice_is_refused(
    site: str, make_topic: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic("Refused")
    real = SinkClient.broker_settings

    async def java(self: SinkClient, broker: str) -> dict[str, str]:
        settings = dict(await real(self, broker))
        del settings["transactionEndIdempotent"]
        return settings

    monkeypatch.setattr(SinkClient, "broker_settings", java)
    with pytest.raises(NotIdempotentError, match=r"broker-a cannot do .* Skylark broker"):
        writer(site, topic=topic, delivery="exactly-once")
    verified = writer(site, topic=topic, delivery="exactly-once", txnVerify="true")
    message = verified.write(bodies([b"1", b"2"]))
    verified.commit([message])
    until(lambda: count(site, topic).total() >= 2, "rows are missing")
    assert count(site, topic) == Counter([b"1", b"2"])
