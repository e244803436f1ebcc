"""How each kind of row is measured, on a session that runs; see :mod:`bench.compare_load.rows`.

Rates of Java programs are the medians of their lines after the warm-up. Where too little time is
measured for a line, the growth of the topic takes its place. Lines that claim more than what the
topic grew by in the same seconds make a sample void.
"""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bench.broker_load import percentile
from bench.client_load.job import RATE as LATENCY_RATE
from bench.compare_load.lines import (
    acknowledged_at_least,
    claim_fault,
    failed_count,
    steady_rate,
)
from bench.compare_load.programs import LoadProgram, cost_of
from bench.compare_load.rows import FILES, PROCESSOR, RATE, Row
from bench.compare_load.session import QUEUES, JavaClient, Mark, Session, settle_disk
from bench.compare_load.summary import Sample, judged
from bench.harness import BenchError

CATCH_UP_TIMEOUT_S: Final = 300.0
#: The part of a catch-up in which it runs at full speed.
FROM_SHARE, TO_SHARE = 0.1, 0.9
CATCH_UPS: Final = 3
#: After transactions, before the processor is watched: clients are noticed to be gone.
CALM_S: Final = 5.0
IDLE_LOAD_S: Final = 10.0
#: Brokers register, and look for open transactions, every 30 seconds.
IDLE_PERIODS_S: Final = 30.0
#: Bytes of the disk that a long log leaves free.
DISK_LEFT: Final = 5 * 10**9

Found = dict[str, Any]


def _option(row: Row, name: str) -> int:
    return int(row.options[name])


def per_million(processor_s: float, count: float) -> float:
    return processor_s / count * 1e6 if count else 0.0


def _rate_figures(rate: float, begin: Mark, end: Mark, count: float) -> dict[str, float]:
    """``count`` messages went through between the marks."""
    processor_s = end.processor_s - begin.processor_s
    return {RATE: rate, PROCESSOR: per_million(processor_s, count)}


# ---- official Java programs ----------------------------------------------------------------------


def _java_sample(session: Session, client: JavaClient, topic: str) -> Found:
    """Let a program that sends work, and count what it did."""
    timing = session.timing
    looks, look = session.watcher(topic)
    with client:
        client.work(timing.warm_up_s, look)
        stored_before, begin = session.stored(topic), session.mark()
        client.work(timing.seconds, look)
        end, lines = session.mark(), client.lines()
        count = session.stored(topic) - stored_before
        look()
    stored_rate = count / (end.at_s - begin.at_s)
    claimed = steady_rate(lines, begin.clock_s)
    acknowledged = acknowledged_at_least(lines)
    return {
        "figures": _rate_figures(claimed or stored_rate, begin, end, count),
        "acknowledged": acknowledged,
        "stored": session.read_back(topic, acknowledged),
        "void": claim_fault(lines, looks),
        "notes": {
            "lines": len(lines),
            "stored_per_s": round(stored_rate, 1),
            "failed": failed_count(lines),
        },
    }


def producer(session: Session, row: Row) -> Found:
    topic = session.topic(int(row.options.get("queues", QUEUES)))
    threads, size = _option(row, "threads"), _option(row, "size")
    client = session.java("Producer", topic, w=threads, s=size)
    found = _java_sample(session, client, topic)
    if any(figure.name == FILES for figure in row.figures):
        found["figures"][FILES] = session.system.open_files()
    return found


def older_producer(session: Session, row: Row) -> Found:
    """The same with an older client, whose benchmark program differs: a program of ours."""
    topic = session.topic()
    options = {
        "namesrv": session.system.namesrv,
        "topic": topic,
        "group": "compare-older",
        "threads": _option(row, "threads"),
        "what": "bare",
    }
    folder = session.system.folder / f"older-{topic}"
    version = str(row.options["client"])
    with LoadProgram("CoverageLoad", "produce", options, folder, version=version) as client:
        cost = cost_of(session, [client], client)
    sent = client.records[-1]["count"]
    return {
        "figures": {RATE: cost["rate"], PROCESSOR: cost["CPU"]},
        "acknowledged": sent,
        "stored": session.stored_finally(topic, sent),
    }


def long_log(session: Session, row: Row) -> Found:
    """The same, behind so many gigabytes of older messages."""
    wanted = _option(row, "gigabytes") * 10**9
    if shutil.disk_usage(session.system.folder).free < wanted + DISK_LEFT:
        raise BenchError(f"the disk has no room for a log of {wanted / 1e9:.0f} GB")
    topic = session.topic()
    job = {"namesrv": session.system.namesrv, "topic": topic, "bytes": wanted}
    filled = session.python("bench.compare_load.filling", json.dumps(job))["stored"]
    if (stored := session.stored_finally(topic, filled)) < filled:  # more: some were sent again
        raise BenchError(f"of {filled} older messages {stored} are there")
    settle_disk(session.timing.pause_s)
    return producer(session, row)


def batch_producer(session: Session, row: Row) -> Found:
    topic = session.topic()
    threads, size, batch = (_option(row, name) for name in ("threads", "size", "batch"))
    client = session.java("BatchProducer", topic, w=threads, s=size, b=batch)
    return _java_sample(session, client, topic)


def transactions(session: Session, row: Row) -> Found:
    """What is stored are messages whose transactions were committed."""
    topic = session.topic()
    threads, size = _option(row, "threads"), _option(row, "size")
    client = session.java("TransactionProducer", topic, w=threads, s=size)
    return _java_sample(session, client, topic)


def _consumer(session: Session, topic: str, group: str) -> JavaClient:
    return session.java("Consumer", topic, g=group, p="false")


def at_once(session: Session, row: Row) -> Found:
    """The rate is that of the slower side; everything must arrive in the end."""
    timing, topic = session.timing, session.topic()
    group = session.group_at_start(topic)
    sender = session.java("Producer", topic, w=_option(row, "threads"), s=_option(row, "size"))
    with _consumer(session, topic, group) as receiver:
        receiver.wait_for_line("Consumer Started")
        looks, look = session.watcher(topic)
        with sender:
            sender.work(timing.warm_up_s, look)
            before, begin = _both_counts(session, group, topic), session.mark()
            sender.work(timing.seconds, look)
            after, end = _both_counts(session, group, topic), session.mark()
            sent, received = sender.lines(), receiver.lines()
            look()
        acknowledged = acknowledged_at_least(sent)
        stored = session.stored_finally(topic, acknowledged)
        _wait_consumed(session, receiver, group, topic, stored)
        consumed = session.consumed(group, topic)
    wall_s = end.at_s - begin.at_s
    counted = [(b - a) / wall_s for a, b in zip(before, after, strict=True)]
    claimed = [steady_rate(lines, begin.clock_s) for lines in (sent, received)]
    rates = [each or count for each, count in zip(claimed, counted, strict=True)]
    void = claim_fault(sent, looks)
    if consumed < stored:
        void = f"{stored - consumed} of {stored} messages were not consumed"
    return {
        "figures": _rate_figures(min(rates), begin, end, after[0] - before[0]),
        "acknowledged": acknowledged,
        "stored": session.read_back(topic, acknowledged),
        "void": void,
        "notes": {"sent_per_s": rates[0], "received_per_s": rates[1]},
    }


def _both_counts(session: Session, group: str, topic: str) -> tuple[int, int]:
    return session.stored(topic), session.consumed(group, topic)


def _wait_consumed(
    session: Session, client: JavaClient, group: str, topic: str, count: int
) -> list[tuple[float, int]]:
    """Watch a group until it has consumed so many; when it had consumed how many."""
    seen: list[tuple[float, int]] = []
    deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
    while not seen or seen[-1][1] < count:
        if time.monotonic() > deadline or not client.running:
            break
        seen.append((time.perf_counter(), session.consumed(group, topic)))
        time.sleep(0.05)
    return seen


def crossing(seen: Sequence[tuple[float, int]], count: float) -> float:
    """When a growing number passed ``count``, between the two looks around it."""
    for (at_before, before), (at, now) in itertools.pairwise(seen):
        if before < count <= now:
            return at_before + (at - at_before) * (count - before) / (now - before)
    return seen[-1][0]


def catch_up(session: Session, row: Row) -> Found:
    """The middle one of a few consumers that come one after the other, each in a group of its own.

    One takes some seconds only, and how fast it is depends on how its JVM has warmed up.
    """
    topic, acknowledged = session.full_topic(_option(row, "size"))
    stored = session.stored_finally(topic, acknowledged)
    begin = session.mark()
    passes = [_one_catch_up(session, topic, stored) for _ in range(CATCH_UPS)]
    end = session.mark()
    rates = [rate for rate, _ in passes]
    missing = max(missing for _, missing in passes)
    return {
        "figures": _rate_figures(statistics.median(rates), begin, end, stored * CATCH_UPS),
        "acknowledged": acknowledged,
        "stored": session.read_back(topic, acknowledged),
        "void": f"{missing} of {stored} messages were not consumed" if missing else None,
        "notes": {"rates": [round(rate) for rate in rates]},
    }


def _one_catch_up(session: Session, topic: str, stored: int) -> tuple[float, int]:
    """The rate of the middle part, and how many messages were not consumed.

    Starting, and the last commits, are slower on purpose.
    """
    group = session.group_at_start(topic)
    with _consumer(session, topic, group) as client:
        seen = _wait_consumed(session, client, group, topic, stored)
    if not seen:
        raise client.failure("ended early")
    took_s = crossing(seen, TO_SHARE * stored) - crossing(seen, FROM_SHARE * stored)
    rate = (TO_SHARE - FROM_SHARE) * stored / took_s if took_s > 0 else 0.0
    return rate, stored - seen[-1][1]


# ---- our client ----------------------------------------------------------------------------------


def client_send(session: Session, row: Row) -> Found:
    topic, size = session.topic(), _option(row, "size")
    count = max(1_000, int(_option(row, "per_s") * session.timing.seconds))
    begin = session.mark()
    result = session.client("send", str(row.options["how"]), topic, count, size)
    end = session.mark()
    found = session.client("stored", "body", topic, 0, size)
    return {
        "figures": _rate_figures(count / result["wall_s"], begin, end, result["stored"]),
        "acknowledged": result["stored"],
        "stored": found["different"],
        "notes": {"client_processor_s": round(result["processor_s"], 3)},
    }


def client_read(session: Session, row: Row) -> Found:
    """What the topic must have, every reader must get."""
    size = _option(row, "size")
    topic, acknowledged = session.full_topic(size)
    stored = session.stored_finally(topic, acknowledged)
    begin = session.mark()
    job, how = str(row.options["job"]), str(row.options["how"])
    result = session.client(job, how, topic, stored, size)
    end = session.mark()
    lost = stored - result["count"] if job == "arrow" else 0
    return {
        "figures": _rate_figures(result["count"] / result["wall_s"], begin, end, result["count"]),
        "acknowledged": acknowledged,
        "stored": stored,
        "void": f"{lost} of {stored} messages were not read" if lost else None,
        "notes": {"client_processor_s": round(result["processor_s"], 3)},
    }


def latency(session: Session, row: Row) -> Found:
    topic, size = session.topic(), _option(row, "size")
    count = max(100, int(LATENCY_RATE * session.timing.seconds))
    result = session.client("latency", "", topic, count, size)
    ordered = sorted(result["latencies_ms"])
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    return {
        "figures": {name: percentile(ordered, share) for name, share in shares.items()},
        "acknowledged": count,
        "stored": session.read_back(topic, count),
    }


# ---- the system itself ---------------------------------------------------------------------------


def start_up(session: Session, row: Row) -> Found:
    del row
    return {"figures": {"time": session.system.start_up_s}}


def memory(session: Session, row: Row) -> Found:
    del row
    found = session.system.memory()
    return {"figures": {"own": found.own, "mapped files": found.mapped}}


def idle(session: Session, row: Row) -> Found:
    """Processor time of a broker that has nothing to do any more."""
    for number in range(_option(row, "topics")):
        session.admin.topics.create(f"compare-idle-{number}", queue_count=1)
    topic = session.topic()
    threads, size = _option(row, "threads"), _option(row, "size")
    with session.java("TransactionProducer", topic, w=threads, s=size) as client:
        client.work(min(IDLE_LOAD_S, session.timing.warm_up_s + session.timing.seconds))
    time.sleep(CALM_S)
    begin = session.mark()
    time.sleep(max(IDLE_PERIODS_S, session.timing.seconds))
    end = session.mark()
    share = (end.processor_s - begin.processor_s) / (end.at_s - begin.at_s)
    return {"figures": {PROCESSOR: 100 * share}, "notes": {"transactions": session.stored(topic)}}


def connections(session: Session, row: Row) -> Found:
    topic, timing = session.topic(), session.timing
    job = {
        "address": session.system.broker,
        "topic": topic,
        "queues": QUEUES,
        "connections": _option(row, "connections"),
        "size": _option(row, "size"),
        "warm_up_s": timing.warm_up_s / 2,
        "seconds": timing.seconds,
    }
    begin = session.mark()
    result = session.python("bench.compare_load.connections", json.dumps(job))
    end = session.mark()
    return {
        "figures": _rate_figures(result["count"] / result["wall_s"], begin, end, result["stored"]),
        "acknowledged": result["stored"],
        "stored": session.read_back(topic, result["stored"]),
        "void": "; ".join(what for what, _ in result["errors"] if "lost" in what) or None,
        "notes": {"refused": result["errors"]},
    }


MEASURES: Final[Mapping[str, Callable[[Session, Row], Found]]] = {
    each.__name__: each
    for each in (
        *(producer, older_producer, long_log, batch_producer, catch_up, at_once, transactions),
        *(client_send, client_read, latency),
        *(start_up, memory, idle, connections),
    )
}
#: What looks at a system as it started, without load before.
COLD: Final = ("start-up", "memory idle")


def measure(session: Session, row: Row, number: int) -> Sample:
    """One sample of a row."""
    found = MEASURES[row.kind](session, row)
    return judged(Sample(row=row.name, system=session.system.name, round=number, **found))
