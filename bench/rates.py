"""What messages cost at everyday rates: Skylark beside Apache RocketMQ 5.5.0.

``make bench PART=rates``; it needs what ``make bench PART=compare`` needs, and takes an hour. It
ends with an error if a goal is missed. ``ROWS='5000*'`` picks rows; ``ARGS`` may be:

``--rounds 1 --seconds 10 --warm-up 10``  to make it small
``--json FILE``  to append each sample to a file, from which a second run at the same commit goes on

A producer sends messages of 1 KB at a fixed rate to 16 queues, asynchronously, and a push consumer
of another process receives them. Both work from the warm-up on, so Apache's start and its
compilation are not counted. For each rate:

``CPU``         seconds of processor time of name server and broker, per minute
``reached``     messages consumed per second
``publish``     from the moment at which a message is due to its acknowledgement
``end to end``  from that moment to the consumer's handler

Times are percentiles over all messages of the measured seconds, to 2 %.

The other rows hold 16, 1,000 and 10,000 pulls that no message comes for: ``idle`` is the broker's
processor time, ``woken`` what a message costs that wakes one pull more, in a topic of its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.compare_load.beside import BesideApache
from bench.compare_load.idle_pulls import idle_pulls, wake_one_by_one
from bench.compare_load.programs import LoadProgram, between, rate_between, work
from bench.compare_load.rows import KIB, Figure, Goal, Row, at_most
from bench.compare_load.session import Session
from bench.harness import BenchError, run_program
from tests.interop.process import ProcessError
from tests.interop.toolchain import ToolchainError

PROGRAM: Final = "RatesLoad"
QUEUES: Final = 16
RATES: Final = (1_000, 5_000, 20_000)
#: Bucket n of the program's records begins at so many microseconds to the power of n.
BUCKET_STEP: Final = 1.02
HELD: Final = (16, 1_000, 10_000)
IDLE_MAX: Final = Goal(1.0, at_least=False, of_ratio=False, unit="%")
PERCENTILES: Final = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


def rows() -> list[Row]:
    return [
        Row(
            *(f"{rate} msg/s", "load", "paced"),
            (
                Figure("CPU", "s/min", at_most(0.5)),
                Figure("reached", "msg/s"),
                *(
                    Figure(f"{what} {name}", "ms", at_most(1.0) if name != "p99.9" else None)
                    for what in ("publish", "end to end")
                    for name in PERCENTILES
                ),
            ),
            {"rate": rate},
        )
        for rate in RATES
    ] + [
        Row(
            *(f"{count} idle pulls", "load", "held"),
            (Figure("idle", "% of a core", IDLE_MAX), Figure("woken", "us/message")),
            {"held": count},
        )
        for count in HELD
    ]


def time_figures(
    what: str, records: Sequence[Mapping[str, Any]], begin_ms: float, end_ms: float
) -> dict[str, float]:
    """Percentiles in milliseconds of the times in this time's records."""
    buckets: Counter[int] = Counter()
    for record in between(records, begin_ms, end_ms):
        buckets.update({int(number): count for number, count in record["buckets"].items()})
    if not buckets:
        raise BenchError(f"{what}: there are no times: measure for longer")
    return {f"{what} {name}": _percentile(buckets, part) for name, part in PERCENTILES.items()}


def _percentile(buckets: Mapping[int, int], part: float) -> float:
    """The middle of the bucket that holds this part of all times."""
    left = part * sum(buckets.values())
    for number in sorted(buckets):
        left -= buckets[number]
        if left <= 0:
            break
    return float(BUCKET_STEP ** (number + 0.5) / 1_000)


def paced(session: Session, row: Row) -> dict[str, Any]:
    topic = session.topic(QUEUES)
    group = session.group_at_start(topic)
    common = {"namesrv": session.system.namesrv, "topic": topic}
    folder = session.system.folder / f"rates-{topic}"
    produce = common | {"group": "rates", "rate": row.options["rate"], "size": KIB}
    with (
        LoadProgram(PROGRAM, "consume", common | {"group": group}, folder / "consume") as consumer,
        LoadProgram(PROGRAM, "produce", produce, folder / "produce") as producer,
    ):
        work((consumer, producer), session.timing.warm_up_s)
        begin, begin_ms = session.mark(), time.time() * 1_000
        work((consumer, producer), session.timing.seconds)
        end, end_ms = session.mark(), time.time() * 1_000
        work((consumer, producer), 0.7)  # the last record of the time comes half a second later
    return {
        "figures": {
            "CPU": (end.processor_s - begin.processor_s) / (end.at_s - begin.at_s) * 60,
            "reached": rate_between(consumer.records, begin_ms, end_ms),
            **time_figures("publish", producer.records, begin_ms, end_ms),
            **time_figures("end to end", consumer.records, begin_ms, end_ms),
        },
        "notes": {"failed_sends": producer.records[-1]["failed"]},
    }


def held(session: Session, row: Row) -> dict[str, Any]:
    idle_topic, topic = session.topic(QUEUES), session.topic(1)
    broker, seconds = session.system.broker, session.timing.seconds
    with idle_pulls(broker, idle_topic, QUEUES, int(row.options["held"])):
        work((), session.timing.warm_up_s)
        begin = session.mark()
        work((), seconds)
        middle = session.mark()
        wake_one_by_one(broker, topic, seconds / 2)  # warms it
        before = session.mark()
        count = wake_one_by_one(broker, topic, seconds)
        end = session.mark()
    idle_s = (middle.processor_s - begin.processor_s) / (middle.at_s - begin.at_s)
    woken_s = end.processor_s - before.processor_s - idle_s * (end.at_s - before.at_s)
    return {"figures": {"idle": idle_s * 100, "woken": woken_s / count * 1e6}}


EVERYDAY: Final = BesideApache(
    name="rates",
    rows=rows(),
    measures={"paced": paced, "held": held},
    program=PROGRAM,
    seconds=60.0,
    warm_up_s=60.0,
)


if __name__ == "__main__":
    run_program(EVERYDAY.name, EVERYDAY.run, ProcessError, ToolchainError)
