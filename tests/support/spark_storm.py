"""Two streaming queries whose driver, Python workers and servers are killed: one seeded run.

A driver in a separate process (:mod:`tests.support.spark_storm_driver`) reads one topic and
writes two, one at least once, one exactly once. For each trouble a plan is laid out
(:mod:`tests.support.spark_storm_steps`) and a portion of messages sent: when a query gets to the
step that the plan names, the victim is killed with SIGKILL, exactly there. What was killed is
started again, and the next trouble waits until both queries have caught up. The troubles of
consecutive seeds go round all victims at all steps of reading, writing and committing; the seed
decides how often a step is taken before, and for how long brokers send no check-backs. Runs
with odd seeds write rows in portions, those with even ones one by one.

What must hold, whatever is killed:

* At least once loses nothing, and its stamps tell repetitions from rows.
* Exactly once gives every row once. A row is known by the place of its message in the source.
* The source has every message that was acknowledged, at the place that the broker named. What is
  stored is read by plain pulls, without the readers of Arrow and Spark that are tested here.
* The half topic drains: nothing stays undecided.
* The queries get over it by themselves: a query that fails goes on with its checkpoint.

A *hit* is a plan that has struck; a run without any does not count.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from skylark import ClientOptions, Message
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.client.core.broker_calls import BrokerCalls, open_caller
from skylark.core.errors import SkylarkError
from skylark.core.names import HALF_TOPIC, TRANSACTION_GROUP
from skylark.sync import Admin, Producer
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import PullSysFlag
from skylark.wire.headers.pull import PullMessageRequestHeader
from skylark.wire.message import inflate_record, iter_records
from tests.interop.ours import SkylarkBroker, SkylarkNamesrv
from tests.interop.process import ManagedProcess, poll_until
from tests.support.crash_series import RunResult
from tests.support.spark_storm_steps import (
    COMMIT_STEPS,
    DRIVER_FILE,
    FOLDER_VARIABLE,
    MANY,
    PLAN_FILE,
    READ_STEPS,
    SINGLE_VARIABLE,
    STOP_FILE,
    WRITE_STEPS,
    Plan,
    fired_file,
    put_file,
)

ROOT: Final = Path(__file__).resolve().parents[2]
SERVERS: Final = ("broker", "namesrv", "resolver")
VICTIMS: Final = ("worker", "driver", *SERVERS)
#: Everyone at every step.
TROUBLES: Final = tuple(
    (victim, step) for victim in VICTIMS for step in (*READ_STEPS, *WRITE_STEPS, *COMMIT_STEPS)
)
_STRIDE: Final = 19  # has no divisor in common with their number: neighbours are of all kinds

SOURCE: Final = "Source"
PLAIN: Final = "Plain"
EXACT: Final = "Exact"
QUEUES: Final = 2
PORTION: Final = 120
#: How often a step is taken at most before it is the one: for each row, or for portions of them.
COUNT_MAX: Final = {True: 20, False: 6}
FIRED_WITHIN_S: Final = 180.0
CAUGHT_UP_WITHIN_S: Final = 300.0
DRAINED_WITHIN_S: Final = 90.0
STOPPED_WITHIN_S: Final = 120.0

BROKER_SETTINGS: Final = {
    "transactionCheckInterval": 500,
    "transactionTimeOut": 1_000,
    "transactionCheckMax": 10_000,
}


class Stored(NamedTuple):
    """A stored message."""

    queue_id: int
    queue_offset: int
    body: bytes
    stamp: str = ""  #: the property by which rows are told from their repetitions


class StormResult(RunResult):
    """What happened in a run that went well; hits are by victim and step."""

    rows: int
    restarts: int  #: of queries that failed
    repeated: int  #: rows that came twice where that is allowed
    recovered_s: float  #: the longest time from a kill until both queries had caught up
    slowest: str  #: after whose kill

    def __str__(self) -> str:
        hits = ", ".join(name if n == 1 else f"{name} x{n}" for name, n in self.hits.items())
        return (
            f"seed {self.seed}: {self.rows} rows in {self.seconds:.0f} s; hits: {hits or 'none'};"
            f" {self.restarts} queries started again, {self.repeated} rows repeated,"
            f" slowest recovery {self.recovered_s:.1f} s ({self.slowest})"
        )


def troubles_of(seed: int, count: int) -> list[tuple[str, str]]:
    """The troubles of a run; those of consecutive seeds (from 1) go on with the round."""
    first = (seed - 1) * count
    return [TROUBLES[number * _STRIDE % len(TROUBLES)] for number in range(first, first + count)]


class _DriverProcess(ManagedProcess):
    START_TIMEOUT_S = 180.0

    def __init__(self, folder: Path, arguments: Sequence[str], *, is_single: bool) -> None:
        super().__init__("driver", folder=folder)
        self._arguments = arguments
        self._single = {SINGLE_VARIABLE: "1"} if is_single else {}
        self.failures = 0

    def command(self) -> list[str]:
        (self.folder / DRIVER_FILE).unlink(missing_ok=True)
        return [
            sys.executable,
            str(ROOT / "tests" / "support" / "spark_storm_driver.py"),
            *self._arguments,
        ]

    def environment(self) -> Mapping[str, str]:
        given = {
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            FOLDER_VARIABLE: str(self.folder),
        }
        return {**os.environ, **given, **self._single}

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            if not self.running:
                raise self.failure("ended at once")
            return (self.folder / DRIVER_FILE).exists()

        poll_until(is_ready, timeout_s=self.START_TIMEOUT_S, what="a driver")

    def count_failures(self) -> None:
        self.failures += sum(line.startswith("failed ") for line in self.waiting_lines())


class _ResolverProcess(ManagedProcess):
    def __init__(self, namesrv: str, folder: Path) -> None:
        super().__init__("resolver", folder=folder)
        self._namesrv = namesrv

    def command(self) -> list[str]:
        program = [sys.executable, "-m", "tests.interop.leashed"]
        return [*program, "txn", "resolver", "-n", self._namesrv]

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT)}

    def wait_ready(self) -> None:
        self.wait_for_line("ready ")


class Storm:
    """One run."""

    def __init__(self, seed: int, troubles: Sequence[tuple[str, str]], folder: Path) -> None:
        self._seed = seed
        self._rng = random.Random(f"spark storm {seed}")
        self._troubles = troubles
        self._folder = folder / "driver"
        self._namesrv = SkylarkNamesrv(folder=folder / "namesrv")
        address = f"127.0.0.1:{self._namesrv.settings['listenPort']}"
        self._broker = SkylarkBroker(address, BROKER_SETTINGS, folder=folder / "broker")
        resolver = _ResolverProcess(address, folder / "resolver")
        servers = (self._broker, self._namesrv, resolver)
        self._servers: dict[str, ManagedProcess] = dict(zip(SERVERS, servers, strict=True))
        self._options = ClientOptions(
            namesrv=address, route_interval=0.2, heartbeat_interval=0.5, metrics=False
        )
        immunity_sec = self._rng.choice((2, 5))
        arguments = [address, SOURCE, PLAIN, EXACT, str(immunity_sec)]
        self._is_single = seed % 2 == 0
        self._driver = _DriverProcess(self._folder, arguments, is_single=self._is_single)
        self._sent = 0
        self._acknowledged: set[bytes] = set()
        self._hits: Counter[str] = Counter()
        self._recovered: dict[str, float] = {}

    def run(self) -> StormResult:
        began = time.monotonic()
        with ExitStack() as stack:
            stack.enter_context(self._namesrv)
            stack.enter_context(self._broker)
            stack.enter_context(self._servers["resolver"])
            self._create_topics()
            producer = stack.enter_context(Producer("storm", self._options, batching=False))
            stack.enter_context(self._driver)
            for number, (victim, step) in enumerate(self._troubles):
                self._make_trouble(number, victim, step, producer)
            self._driver.count_failures()
            self._stop_driver()
            poll_until(self._is_drained, timeout_s=DRAINED_WITHIN_S, what="an empty half topic")
            rows, repeated = self._check()
        slowest = max(self._recovered, key=self._recovered.__getitem__)
        return StormResult(
            seed=self._seed,
            rows=rows,
            seconds=time.monotonic() - began,
            hits=dict(self._hits),
            restarts=self._driver.failures,
            repeated=repeated,
            recovered_s=self._recovered[slowest],
            slowest=slowest,
        )

    # ---- trouble ---------------------------------------------------------------------------------

    def _create_topics(self) -> None:
        with Admin(self._options) as admin:
            for topic in (SOURCE, PLAIN, EXACT):
                admin.topics.create(topic, queue_count=QUEUES)

    def _make_trouble(self, number: int, victim: str, step: str, producer: Producer) -> None:
        count = self._rng.randint(1, COUNT_MAX[self._is_single]) if step in MANY else 1
        server = self._servers.get(victim)
        pid = 0 if server is None else server.pid
        plan = Plan(number=number, victim=victim, step=step, count=count, pid=pid)
        put_file(self._folder / PLAN_FILE, plan)
        self._send(producer)
        fired = fired_file(self._folder, number)
        poll_until(fired.exists, timeout_s=FIRED_WITHIN_S, what=f"{victim} killed at {step}")
        self._hits[f"{victim} at {step}"] += 1
        killed_at = time.monotonic()
        if server is not None:
            server.kill()  # it is dead, or dies this moment
            server.start()
        elif victim == "driver":
            self._driver.wait(STOPPED_WITHIN_S)
            self._driver.count_failures()
            self._driver.kill()
            self._driver.start()
        poll_until(self._has_caught_up, timeout_s=CAUGHT_UP_WITHIN_S, what="all rows")
        self._recovered[f"{victim} at {step}"] = time.monotonic() - killed_at

    def _send(self, producer: Producer) -> None:
        """Sends that fail, because the broker is killed, may be stored all the same."""
        bodies = [b"%d" % (self._sent + n) for n in range(PORTION)]
        self._sent += PORTION
        for body, future in [(body, producer.submit(Message(SOURCE, body))) for body in bodies]:
            try:
                result = future.result(60)
            except SkylarkError:
                continue
            self._acknowledged.add(row_key(result.queue.queue_id, result.queue_offset, body))

    def _stop_driver(self) -> None:
        (self._folder / STOP_FILE).touch()
        self._driver.wait(STOPPED_WITHIN_S)

    # ---- what is there ---------------------------------------------------------------------------

    def _stored(self, topic: str) -> list[Stored]:
        return shared_portal().call(stored_records(self._broker.address, topic))

    def _has_caught_up(self) -> bool:
        if not self._driver.running:
            raise self._driver.failure("has ended")
        wanted = source_keys(self._stored(SOURCE))
        return all(
            {record.body for record in self._stored(topic)} >= wanted.keys()
            for topic in (PLAIN, EXACT)
        )

    def _is_drained(self) -> bool:
        queue = MessageQueue(topic=HALF_TOPIC, broker_name="broker-a", queue_id=0)

        async def ask() -> bool:
            async with open_caller() as caller:
                calls, address = BrokerCalls(caller), self._broker.address
                end = await calls.max_offset(address, queue)
                return await calls.query_offset(address, TRANSACTION_GROUP, queue) == end

        return shared_portal().call(ask())

    def _check(self) -> tuple[int, int]:
        """Raise unless everything holds; how many rows there are, and how many came again."""
        stored = (self._stored(topic) for topic in (SOURCE, EXACT, PLAIN))
        return check_rows(self._acknowledged, *stored)


def row_key(queue_id: int, queue_offset: int, body: bytes) -> bytes:
    """The name of a message by its place in the source; the queries write it as their rows."""
    return b"%d-%d-%b" % (queue_id, queue_offset, body)


def source_keys(source: Sequence[Stored]) -> Counter[bytes]:
    """The rows that the queries must write."""
    return Counter(row_key(each.queue_id, each.queue_offset, each.body) for each in source)


def check_rows(
    acknowledged: Collection[bytes],
    source: Sequence[Stored],
    exact: Sequence[Stored],
    plain: Sequence[Stored],
) -> tuple[int, int]:
    """Raise unless everything holds; how many rows there are, and how many came again."""
    wanted = source_keys(source)
    assert wanted.total() == len(wanted) > 0
    lost = sorted(set(acknowledged) - wanted.keys())
    assert not lost, f"acknowledged, and not in the source: {lost}"
    found = Counter(each.body for each in exact)
    assert found == wanted, difference(found, wanted)
    assert {each.body for each in plain} == wanted.keys()
    stamps = Counter({each.stamp: each.body for each in plain}.values())
    assert stamps == wanted, difference(stamps, wanted)
    return len(wanted), len(plain) - len(wanted)


async def stored_records(address: str, topic: str) -> list[Stored]:
    """All messages of a topic by plain pulls, as any client does them, queue by queue."""
    found: list[Stored] = []
    async with open_caller() as caller:
        calls = BrokerCalls(caller)
        for queue_id in range(QUEUES):
            queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=queue_id)
            offset, end = 0, await calls.max_offset(address, queue)
            while offset < end:
                header = PullMessageRequestHeader(
                    consumer_group="storm-check",
                    topic=topic,
                    queue_id=queue_id,
                    queue_offset=offset,
                    max_msg_nums=32,
                    sys_flag=int(PullSysFlag.SUBSCRIPTION),
                    commit_offset=0,
                    suspend_timeout_millis=0,
                    subscription="*",
                    sub_version=1,
                    expression_type="TAG",
                )
                pulled = await calls.pull(address, header, "broker-a")
                for record in iter_records(pulled.body):
                    inflate_record(record)
                    stamp = record.properties.get("SPARK_ID", "")
                    found.append(Stored(queue_id, record.queue_offset, record.body, stamp))
                assert pulled.next_offset > offset, f"{queue} ends at {offset}, and not at {end}"
                offset = pulled.next_offset
    return found


def difference(found: Counter[bytes], wanted: Counter[bytes]) -> str:
    """What is too much and too little."""
    return f"too many: {dict(found - wanted)}, too few: {dict(wanted - found)}"


def run_storm(seed: int, troubles: Sequence[tuple[str, str]], folder: Path) -> StormResult:
    """One run; the folder keeps the logs when it fails."""
    try:
        return Storm(seed, troubles, folder).run()
    except BaseException as error:
        shown = ", ".join(f"{victim} at {step}" for victim, step in troubles)
        error.add_note(f"seed {seed}, troubles: {shown}; see {folder}")
        raise
