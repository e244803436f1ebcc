"""Whether one busy connection starves the others: Skylark beside Apache RocketMQ 5.5.0.

``make bench PART=fairness``; it needs what ``make bench PART=compare`` needs, and takes half an
hour. It ends with an error if a goal is missed. ``ROWS=flood`` picks rows; ``ARGS`` may be:

``--rounds 1 --seconds 5 --warm-up 5``  to make it small
``--json FILE``  to append each sample to a file, from which a second run at the same commit goes on

Two rows, of messages of 1 KB in 16 queues:

``flood``           three Java programs, each with a connection of its own: a producer of
                    asynchronous batches (512 x 32 messages in flight), its push consumer, and a
                    quiet producer that sends one message every 10 ms and waits for the answer
``batches``         the official ``BatchProducer`` (4 threads, 32 messages) with the official
                    ``Consumer``

``produced`` and ``consumed`` are messages per second, counted by the programs between two moments
after the warm-up; ``together`` is their sum; ``caught up`` is the part of what was produced that
was consumed. The quiet producer's times are of its sends in the same seconds; ``refused`` counts
those that failed. Rounds alternate as those of :mod:`bench.compare` do.
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
            *("batches", "load", "batches"),
            (Figure("produced", "msg/s", Goal(1.0)), Figure("consumed", "msg/s", Goal(1.0))),
        ),
    ]


# ---- three programs, three connections -----------------------------------------------------------


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


def flood(session: Session, row: Row) -> Found:
    del row
    topic, quiet_topic = session.topic(QUEUES), session.topic(QUEUES)
    group = session.group_at_start(topic)
    common = {"namesrv": session.system.namesrv, "size": KIB}
    folder = session.system.folder / f"fairness-{topic}"

    def program(kind: str, **options: object) -> LoadProgram:
        return LoadProgram(PROGRAM, kind, common | options, folder / kind)

    with (
        program("consume", topic=topic, group=group) as consumer,
        program("flood", topic=topic, group="flood", batch=BATCH, in_flight=IN_FLIGHT) as producer,
        program("quiet", topic=quiet_topic, group="quiet", interval_ms=INTERVAL_MS) as quiet,
    ):
        programs = (consumer, producer, quiet)
        work(programs, session.timing.warm_up_s)
        begin_ms = time.time() * 1_000
        work(programs, session.timing.seconds)
        end_ms = time.time() * 1_000
        produced = rate_between(producer.records, begin_ms, end_ms)
        consumed = rate_between(consumer.records, begin_ms, end_ms)
        figures = quiet_figures(quiet.records, begin_ms, end_ms)
        failed = producer.records[-1]["failed"]
    return {
        "figures": {
            "consumed": consumed,
            "produced": produced,
            "together": produced + consumed,
            "caught up": 100 * consumed / produced if produced else 0.0,
            **figures,
        },
        "notes": {"failed_batches": failed},
    }


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
    measures={"flood": flood, "batches": batches},
    program=PROGRAM,
    seconds=30.0,
    warm_up_s=20.0,
)


if __name__ == "__main__":
    run_program(FAIRNESS.name, FAIRNESS.run, ProcessError, ToolchainError)
