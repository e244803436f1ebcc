"""Streaming queries whose driver, workers and servers are killed, short form; ``make crash
PART=spark`` runs the long one. What must hold is in :mod:`tests.support.spark_storm`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark import ClientOptions
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.core.errors import TransportError
from skylark.spark.exactly_once import txn_log
from skylark.spark.exactly_once.txn_log import TxnLog
from skylark.spark.exactly_once.txn_log_records import LOG_TOPIC
from skylark.spark.sink.sink_client import SinkClient, open_client
from skylark.sync import Admin
from tests.crash import test_spark as long_form
from tests.interop.ours import SkylarkBroker, SkylarkNamesrv
from tests.interop.process import poll_until
from tests.support.spark_storm import (
    TROUBLES,
    VICTIMS,
    Stored,
    StormResult,
    check_rows,
    row_key,
    run_storm,
    troubles_of,
)


@pytest.mark.timeout(300)
def test_three_kills(tmp_path: Path) -> None:
    troubles = [("worker", "half stored"), ("broker", "end"), ("driver", "decision stored")]
    result = run_storm(1, troubles, tmp_path)
    print(f"\n{result}")
    assert result.hits == {f"{victim} at {step}": 1 for victim, step in troubles}


def test_a_storm_fails_if_an_acknowledged_message_is_not_in_the_source() -> None:
    source = [Stored(0, 0, b"a"), Stored(1, 0, b"b"), Stored(0, 1, b"c")]
    keys = [row_key(each.queue_id, each.queue_offset, each.body) for each in source]
    exact = [Stored(0, n, key) for n, key in enumerate(keys)]
    plain = [Stored(0, n, key, f"s{n}") for n, key in enumerate(keys)]
    assert check_rows(keys, source, exact, plain) == (3, 0)
    assert check_rows(keys, source, exact, [*plain, Stored(0, 3, keys[0], "s0")]) == (3, 1)
    with pytest.raises(AssertionError, match=r"acknowledged, and not in the source: \[b'0-1-c'\]"):
        check_rows(keys, source[:2], exact[:2], plain[:2])
    with pytest.raises(AssertionError, match="acknowledged"):  # it is there, but elsewhere
        check_rows([b"1-1-c"], source, exact, plain)
    for wrong in ([*exact, Stored(0, 3, keys[0])], exact[:2]):
        with pytest.raises(AssertionError, match="too many"):
            check_rows(keys, source, wrong, plain)


def test_everyone_is_killed_at_every_step_in_sixteen_runs() -> None:
    runs = [troubles_of(seed, long_form.KILLS) for seed in range(1, 17)]
    assert sorted(trouble for run in runs for trouble in run) == sorted(TROUBLES)
    assert all(len({victim for victim, _ in run}) > 1 for run in runs)


def test_a_series_kills_a_hundred_times_and_often_between_decision_and_done() -> None:
    seeds = long_form.SERIES.seeds
    kills = [trouble for seed in seeds for trouble in troubles_of(seed, long_form.KILLS)]
    assert len(kills) == 100
    between = {"decision stored", "end", "ended", "done"}
    assert sum(step in between for _, step in kills) >= 20
    assert {victim for victim, step in kills if step in between} == set(VICTIMS)


def test_the_summary_of_a_series() -> None:
    runs = [
        StormResult(
            seed=seed,
            rows=100,
            seconds=60.0,
            hits={f"{victim} at {step}": 1 for victim, step in troubles_of(seed, long_form.KILLS)},
            restarts=2,
            repeated=seed,
            recovered_s=seed / 10,
            slowest="broker at read",
        )
        for seed in (1, 2, 3)
    ]
    assert long_form.summary(runs) == (
        "3 runs, 15 kills (broker 2, driver 3, namesrv 3, resolver 3, worker 4) at 15 places,"
        " 300 rows in 180 s;"
        " 6 queries started again, 6 rows repeated, slowest recovery 0.3 s"
    )


def test_the_log_of_decisions_is_not_made_again_while_its_broker_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name servers forget the topics of a broker that is killed; what it decided still counts."""
    monkeypatch.setattr(txn_log, "PATIENCE_S", 0.5)
    with SkylarkNamesrv(folder=tmp_path / "namesrv") as namesrv:
        options = ClientOptions(namesrv=namesrv.address, metrics=False)
        brokers = {
            name: SkylarkBroker(namesrv.address, {"brokerName": name}, folder=tmp_path / name)
            for name in ("broker-a", "broker-b")
        }
        with brokers["broker-a"], brokers["broker-b"], Admin(options) as admin:

            def names() -> list[str]:
                return sorted(each.broker for each in admin.stats.clusters().brokers)

            poll_until(lambda: len(names()) == 2, timeout_s=30, what="both brokers")
            assert brokers_of_log(options) == {"broker-a"}
            brokers["broker-a"].kill()
            poll_until(lambda: names() == ["broker-b"], timeout_s=30, what="the other one")
            with pytest.raises(TransportError, match="broker broker-a is down"):
                brokers_of_log(options)
            brokers["broker-a"].start()
            assert brokers_of_log(options) == {"broker-a"}
            assert len(admin.topics.route(LOG_TOPIC).queue_datas) == 1


def brokers_of_log(options: ClientOptions) -> set[str]:
    """As a client finds them that knows nothing yet."""
    portal = shared_portal()
    client: SinkClient = portal.call(open_client(options, "test"))
    try:
        return {queue.broker_name for queue in portal.call(TxnLog(client).find())}
    finally:
        portal.call(client.close())
