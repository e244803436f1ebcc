"""Two drivers at the same time, of one query or with one ``txnId``: every row once, exactly."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skylark import ClientOptions, Message
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.spark.exactly_once.commit_protocol import OtherDataError
from skylark.spark.exactly_once.txn_log import TxnLog
from skylark.spark.exactly_once.txn_log_records import Decision, Done
from skylark.sync import Admin, Producer
from tests.interop.process import poll_until
from tests.spark.sink_site import QUICK_CHECKS, Query, bodies, client_of, count, until, writer
from tests.support.up import cluster

ROUNDS = 6
WAIT_S = 180
HERE = Path(__file__).parent
CODE = os.pathsep.join(map(str, (HERE.parents[1] / "src", HERE.parents[1])))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a cluster of two brokers that asks about half messages soon and often."""
    folder = tmp_path_factory.mktemp("cluster")
    with cluster(folder, "--brokers", "2", *QUICK_CHECKS) as namesrv:
        yield namesrv


def make_topic(site: str, name: str) -> str:
    with Admin(ClientOptions(namesrv=site)) as admin:
        admin.topics.create(name, queue_count=2)
    return name


def together(*work: Callable[[], Any]) -> list[Any]:
    """Run the drivers at the same time; the result or the error of each."""
    start = threading.Barrier(len(work))

    def run(driver: Callable[[], Any]) -> Any:
        start.wait(30)
        try:
            return driver()
        except Exception as error:  # noqa: BLE001 - the caller looks at it
            return error

    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(run, work))


def test_two_drivers_of_one_query(site: str) -> None:
    """One decision is valid for both of them, and the halves of the other driver disappear."""
    topic = make_topic(site, "Query")
    query = Query(site, topic, "shared")
    for batch in range(ROUNDS):
        written = together(*[partial(query.write, batch)] * 2)
        if batch % 2:  # one after the other: the second one finds that it is done
            query.commit(written[0], batch)
            query.commit(written[1], batch)
        else:
            commits = [partial(query.commit, messages, batch) for messages in written]
            assert together(*commits) == [None, None]
    until(lambda: count(site, topic).total() >= query.everything(ROUNDS).total(), "rows missing")
    assert count(site, topic) == query.everything(ROUNDS)

    log = TxnLog(client_of(site))
    records = shared_portal().call(log.batch_records(query.sink))
    assert {r.batch for r in records if isinstance(r, Done)} == set(range(ROUNDS))
    decided = Counter(r.batch for r in records if isinstance(r, Decision))
    assert set(decided) == set(range(ROUNDS))
    assert max(decided.values()) <= 2


def test_a_driver_that_slept_while_another_went_on(site: str) -> None:
    topic = make_topic(site, "Sleeper")
    query = Query(site, topic, "sleeper")
    query.run(0)
    late = query.write(1)
    query.run(1)
    query.run(2)
    query.commit(late, 1)  # decided long ago
    assert all(message.prepared.already for message in query.write(2))  # type: ignore[union-attr]
    query.run(3)
    until(lambda: count(site, topic).total() >= query.everything(4).total(), "rows are missing")
    assert count(site, topic) == query.everything(4)


@pytest.mark.parametrize("is_same", [True, False], ids=["the same rows", "other rows"])
def test_two_writes_with_one_txn_id(site: str, is_same: bool) -> None:
    topic = make_topic(site, f"Batch{is_same:d}")
    wanted: Counter[bytes] = Counter()
    for number in range(ROUNDS):
        rows = [[b"%d/%d" % (number, n) for n in range(20)] for _ in range(2)]
        if not is_same:
            rows[1] = [b"other %s" % row for row in rows[1]]

        def write(mine: list[bytes], txn_id: str = f"daily-{is_same:d}-{number}") -> Counter[bytes]:
            once = writer(site, topic=topic, delivery="exactly-once", txnId=txn_id)
            once.commit([once.write(bodies(mine))])
            return Counter(mine)

        found = together(*[partial(write, mine) for mine in rows])
        winners = [each for each in found if isinstance(each, Counter)]
        losers = [each for each in found if not isinstance(each, Counter)]
        if is_same:
            assert losers == []
        else:
            assert [type(each) for each in losers] == [OtherDataError]
            assert "was used before to write other rows" in str(losers[0])
        wanted += winners[0]
    until(lambda: count(site, topic).total() >= wanted.total(), "rows are missing")
    assert count(site, topic) == wanted


class Rivals:
    """Driver processes on one checkpoint."""

    def __init__(self, site: str, source: str, target: str, folder: Path) -> None:
        self._arguments = (site, source, target, str(folder))
        self._folder = folder
        self._open: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._open[name] = subprocess.Popen(
                [sys.executable, str(HERE / "rival_driver.py"), name, *self._arguments],
                env={**os.environ, "PYTHONPATH": CODE},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def ended(self) -> dict[str, int]:
        """The exit codes of those that have ended."""
        codes = {name: child.poll() for name, child in self._open.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def stop(self) -> dict[str, int]:
        """Tell all to stop; their exit codes."""
        (self._folder / "stop").touch()
        return {name: child.wait(WAIT_S) for name, child in self._open.items()}

    def kill(self) -> None:
        for child in self._open.values():
            child.kill()
            child.wait()


def test_two_drivers_on_one_checkpoint(site: str, tmp_path: Path) -> None:
    """Spark ends one of them with a clear error, and the other one goes on."""
    source, target = make_topic(site, "Source"), make_topic(site, "Target")
    sent: Counter[bytes] = Counter()
    rivals = Rivals(site, source, target, tmp_path)

    with Producer("test", ClientOptions(namesrv=site)) as producer:

        def send() -> None:
            rows = [b"%d" % n for n in range(sent.total(), sent.total() + 60)]
            for future in [producer.submit(Message(source, row)) for row in rows]:
                future.result(30)
            sent.update(rows)

        def one_has_ended() -> bool:
            if count(site, target).total() >= sent.total():
                send()
            return bool(rivals.ended())

        try:
            send()
            rivals.start("first")
            poll_until(lambda: count(site, target).total(), timeout_s=WAIT_S, what="rows")
            rivals.start("second")
            poll_until(one_has_ended, timeout_s=WAIT_S, what="the end of one of them")
            poll_until(
                lambda: count(site, target).total() >= sent.total(),
                timeout_s=WAIT_S,
                what="all rows",
            )
            codes = rivals.stop()
        finally:
            rivals.kill()
    assert sorted(codes.values()) == [0, 1]
    (loser,) = (name for name, code in codes.items() if code)
    problem = "RefusedError: another driver runs this query on the same checkpoint"
    assert problem in rivals.log(loser), rivals.log(loser)[-3000:]
    assert count(site, target) == sent
