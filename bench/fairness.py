"""Whether one busy connection starves the others: Skylark beside Apache RocketMQ 5.5.0.

``make bench PART=fairness``; it needs what ``make bench PART=compare`` needs, and takes about an
hour. It ends with an error if a goal is missed. ``ROWS=flood`` picks rows; ``ARGS`` may be:

``--rounds 1 --seconds 5 --warm-up 5``  to make it small
``--json FILE``  to append each sample to a file, from which a second run at the same commit goes on

Four rows, of messages of 1 KB in 16 queues:

``flood``           three Java programs, each with a connection of its own: a producer of
                    asynchronous batches (512 x 32 messages in flight), its push consumer, and a
                    quiet producer that sends one message every 10 ms and waits for the answer
``auto batch``      two Java programs: a producer that sends single messages, asynchronously and
                    with as many in flight, of which its client makes batches (``setAutoBatch``),
                    and its push consumer
``shared``          one Java program whose client has one connection: it sends the same flood, and
                    meanwhile pulls from the flooded topic and asks for the end of a queue, one
                    request of each kind at a time, 10 ms apart
``batches``         the official ``BatchProducer`` (4 threads, 32 messages) with the official
                    ``Consumer``

``produced`` and ``consumed`` are messages per second, counted by the programs between two moments
after the warm-up; ``together`` is their sum; ``caught up`` is the part of what was produced that
was consumed. The quiet producer's times are of its sends in the same seconds; ``refused`` counts
those that failed. Of the shared connection, ``pull`` and ``end`` are the times of its two requests
(the second stands for a heartbeat: both are small, and at Apache neither waits in the pool of the
sends), ``pulled`` is messages per second, and ``failed`` counts requests without an answer. That
row has no goal: what arrives over one connection is served in order, where Apache's pools take
requests out of order. Rounds alternate as those of :mod:`bench.compare` do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.broker_load import percentile
from bench.compare_load.beside import BesideApache
from bench.compare_load.lines import steady_rate
from bench.compare_load.programs import LoadProgram, between, rate_between, work
from bench.compare_load.rows import KIB, Figure, Goal, Row, at_most
from bench.compare_load.session import Session
from bench.harness import BenchError, run_program
from tests.interop.process import ProcessError
from tests.interop.toolchain import ToolchainError

QUEUES: Final = 16
IN_FLIGHT: Final = 512
BATCH: Final = 32
THREADS: Final = 4
INTERVAL_MS: Final = 10
PROGRAM: Final = "FairnessLoad"

Found = dict[str, Any]


def rows() -> list[Row]:
    return [
        Row(
            *("flood", "load", "flood"),
            (
                Figure("consumed", "msg/s", Goal(0.9)),
                Figure("produced", "msg/s"),
                Figure("together", "msg/s", Goal(1.0)),
                Figure("caught up", "%"),
                Figure("quiet p50", "ms"),
                Figure("quiet p99", "ms", at_most(0.5)),
                Figure("refused", "sends", Goal(0, at_least=False, of_ratio=False, unit="")),
            ),
        ),
        Row(
            *("auto batch", "load", "auto_batch"),
            (
                Figure("consumed", "msg/s", Goal(0.9)),
                Figure("produced", "msg/s"),
                Figure("caught up", "%"),
            ),
        ),
        Row(
            *("shared", "load", "shared"),
            (
                Figure("pull p50", "ms"),
                Figure("pull p99", "ms"),
                Figure("end p50", "ms"),
                Figure("end p99", "ms"),
                Figure("pulled", "msg/s"),
                Figure("produced", "msg/s"),
                Figure("failed", "requests"),
            ),
        ),
        Row(
            *("batches", "load", "batches"),
            (Figure("produced", "msg/s", Goal(1.0)), Figure("consumed", "msg/s", Goal(1.0))),
        ),
    ]


# ---- programs of ours ----------------------------------------------------------------------------


class _Programs:
    """Makes the programs of one row."""

    def __init__(self, session: Session, topic: str) -> None:
        self._common = {"namesrv": session.system.namesrv, "size": KIB, "topic": topic}
        self._folder = session.system.folder / f"fairness-{topic}"

    def make(self, kind: str, **options: object) -> LoadProgram:
        return LoadProgram(PROGRAM, kind, self._common | options, self._folder / kind)


def _measured(session: Session, programs: Sequence[LoadProgram]) -> tuple[float, float]:
    """Let started programs work; begin and end of the measurement, in milliseconds."""
    work(programs, session.timing.warm_up_s)
    begin_ms = time.time() * 1_000
    work(programs, session.timing.seconds)
    return begin_ms, time.time() * 1_000


def flow_figures(
    producer: Sequence[Mapping[str, Any]],
    consumer: Sequence[Mapping[str, Any]],
    begin_ms: float,
    end_ms: float,
) -> dict[str, float]:
    """What went in and came out in this time, by the records of two programs."""
    produced = rate_between(producer, begin_ms, end_ms)
    consumed = rate_between(consumer, begin_ms, end_ms)
    return {
        "consumed": consumed,
        "produced": produced,
        "caught up": 100 * consumed / produced if produced else 0.0,
    }


def quiet_figures(
    records: Sequence[Mapping[str, Any]], begin_ms: float, end_ms: float
) -> dict[str, float]:
    """How long single sends took in this time, and how many of them failed."""
    sends = between(records, begin_ms, end_ms)
    took = sorted(float(each["ms"]) for each in sends if each["stored"])
    if not took:
        raise BenchError("the quiet producer sent nothing: measure for longer")
    return {
        "quiet p50": percentile(took, 0.5),
        "quiet p99": percentile(took, 0.99),
        "refused": float(len(sends) - len(took)),
    }


def shared_figures(
    records: Sequence[Mapping[str, Any]], begin_ms: float, end_ms: float
) -> dict[str, float]:
    """How long the requests beside a flood took in this time, and what they brought."""
    found = {"failed": 0.0, "produced": rate_between(records, begin_ms, end_ms)}
    asked = between(records, begin_ms, end_ms)
    for kind in ("pull", "end"):
        requests = [each for each in asked if each["event"] == kind]
        took = sorted(float(each["ms"]) for each in requests if each["answered"])
        if not took:
            raise BenchError(f"no {kind} was answered: measure for longer")
        found[f"{kind} p50"] = percentile(took, 0.5)
        found[f"{kind} p99"] = percentile(took, 0.99)
        found["failed"] += len(requests) - len(took)
    pulled = sum(each["messages"] for each in asked if each["event"] == "pull")
    return found | {"pulled": pulled / (end_ms - begin_ms) * 1_000}


def flood(session: Session, row: Row) -> Found:
    del row
    topic, quiet_topic = session.topic(QUEUES), session.topic(QUEUES)
    group = session.group_at_start(topic)
    made = _Programs(session, topic)
    with (
        made.make("consume", group=group) as consumer,
        made.make("flood", group="flood", batch=BATCH, in_flight=IN_FLIGHT) as producer,
        made.make("quiet", topic=quiet_topic, group="quiet", interval_ms=INTERVAL_MS) as quiet,
    ):
        times = _measured(session, (consumer, producer, quiet))
        flow = flow_figures(producer.records, consumer.records, *times)
        figures = quiet_figures(quiet.records, *times)
        failed = producer.records[-1]["failed"]
    together = flow["produced"] + flow["consumed"]
    return {
        "figures": flow | figures | {"together": together},
        "notes": {"failed_batches": failed},
    }


def auto_batch(session: Session, row: Row) -> Found:
    del row
    topic = session.topic(QUEUES)
    group = session.group_at_start(topic)
    made = _Programs(session, topic)
    with (
        made.make("consume", group=group) as consumer,
        made.make("auto", group="auto", in_flight=BATCH * IN_FLIGHT) as producer,
    ):
        times = _measured(session, (consumer, producer))
        figures = flow_figures(producer.records, consumer.records, *times)
        failed = producer.records[-1]["failed"]
    return {"figures": figures, "notes": {"failed_messages": failed}}


def shared(session: Session, row: Row) -> Found:
    del row
    topic = session.topic(QUEUES)
    options: dict[str, object] = {
        "group": "shared",
        "consumer_group": session.group_at_start(topic),
        "batch": BATCH,
        "in_flight": IN_FLIGHT,
        "interval_ms": INTERVAL_MS,
    }
    with _Programs(session, topic).make("shared", **options) as program:
        times = _measured(session, (program,))
        figures = shared_figures(program.records, *times)
        counts = [record for record in program.records if record["event"] == "count"]
    return {"figures": figures, "notes": {"failed_batches": counts[-1]["failed"]}}


# ---- the official programs -----------------------------------------------------------------------


def batches(session: Session, row: Row) -> Found:
    del row
    topic = session.topic(QUEUES)
    group = session.group_at_start(topic)
    timing = session.timing
    with session.java("Consumer", topic, g=group, p="false") as receiver:
        receiver.wait_for_line("Consumer Started")
        with session.java("BatchProducer", topic, w=THREADS, s=KIB, b=BATCH) as sender:
            sender.work(timing.warm_up_s)
            begin = session.mark()
            sender.work(timing.seconds)
            produced = steady_rate(sender.lines(), begin.clock_s)
            consumed = steady_rate(receiver.lines(), begin.clock_s)
    if produced is None or consumed is None:
        raise BenchError("the programs tell about nine seconds at a time: measure for longer")
    return {"figures": {"produced": produced, "consumed": consumed}}


FAIRNESS: Final = BesideApache(
    name="fairness",
    rows=rows(),
    measures={"flood": flood, "auto_batch": auto_batch, "shared": shared, "batches": batches},
    program=PROGRAM,
    seconds=30.0,
    warm_up_s=20.0,
)


if __name__ == "__main__":
    run_program(FAIRNESS.name, FAIRNESS.run, ProcessError, ToolchainError)
