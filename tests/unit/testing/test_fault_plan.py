"""The fault plan: scripted and drawn faults, and the promise that a seed replays them."""

from __future__ import annotations

import errno
import threading

import pytest

from skylark.testing.fault_plan import (
    LOG_SIZE_MAX,
    NO_FAULT,
    Fault,
    FaultAction,
    FaultPlan,
    Gate,
)


def actions(plan: FaultPlan, point: str, count: int) -> list[str]:
    return [plan.draw(point).action.value for _ in range(count)]


def test_scripted_faults_strike_at_their_visits() -> None:
    plan = FaultPlan(1).at("files.sync", nth=3, error=errno.ENOSPC)
    plan.at("files.sync", nth=(4, 6), delay_ms=20)
    assert actions(plan, "files.sync", 7) == [
        "none", "none", "error", "delay", "none", "delay", "none",
    ]  # fmt: skip
    assert plan.draw("files.sync") is NO_FAULT
    assert plan.visits["files.sync"] == 8


def test_positions_count_from_the_moment_a_rule_is_added() -> None:
    plan = FaultPlan(1)
    assert actions(plan, "files.sync", 5) == ["none"] * 5
    plan.at("files.sync", nth=2, error=errno.EIO)
    assert actions(plan, "files.sync", 2) == ["none", "error"]


def test_star_matches_a_prefix_and_counts_over_all_its_points() -> None:
    plan = FaultPlan(1).at("files.*", nth=3, action=FaultAction.CUT)
    assert plan.draw("files.open") is NO_FAULT
    assert plan.draw("proxy.to_server") is NO_FAULT
    assert plan.draw("files.read") is NO_FAULT
    assert plan.draw("files.open").action is FaultAction.CUT


def test_first_rule_that_fires_decides_and_all_count_the_visit() -> None:
    plan = FaultPlan(1).at("p", nth=1, error=5).at("p", nth=(1, 2), error=6)
    assert [plan.draw("p").error for _ in range(3)] == [5, 6, 0]


def test_chance_is_limited_and_about_right() -> None:
    plan = FaultPlan(3).chance("p", 0.2, action=FaultAction.DROP)
    assert 150 < actions(plan, "p", 1000).count("drop") < 250
    plan = FaultPlan(3).chance("p", 1.0, action=FaultAction.DROP, limit=2)
    assert actions(plan, "p", 4) == ["drop", "drop", "none", "none"]
    assert actions(FaultPlan(3).chance("p", 0.0, action=FaultAction.DROP), "p", 50) == ["none"] * 50


def test_seed_decides_and_points_do_not_disturb_each_other() -> None:
    def drawn(seed: int, *, others: int) -> list[str]:
        plan = FaultPlan(seed).chance("*", 0.5, action=FaultAction.DROP)
        result = []
        for _ in range(64):
            actions(plan, "other", others)
            result.append(plan.draw("p").action.value)
        return result

    assert drawn(7, others=0) == drawn(7, others=3)
    assert drawn(7, others=0) != drawn(8, others=0)
    assert FaultPlan(7).stream("x").random() == FaultPlan(7).stream("x").random()
    assert FaultPlan(7).stream("x").random() != FaultPlan(7).stream("y").random()
    # a seed written down today replays in another process and on another machine
    assert FaultPlan(7).stream("x").randrange(10**9) == 676_165_825


def test_log_counts_and_replay_line() -> None:
    plan = FaultPlan(42).at("files.sync", nth=2, error=errno.EIO)
    plan.chance("proxy.*", 1.0, action=FaultAction.CUT, limit=1)
    plan.draw("files.sync", "/log")
    plan.draw("files.sync", "/log")
    plan.draw("proxy.to_client")
    plan.hit("files.sync", FaultAction.ERROR)
    plan.note("files.power_loss", FaultAction.CUT, "all kept")
    assert [str(decision) for decision in plan.log] == [
        "files.sync#2:error(EIO) /log",
        "proxy.to_client#1:cut",
        "files.power_loss#0:cut all kept",
    ]
    assert plan.drawn == {"files.sync/error": 1, "proxy.to_client/cut": 1}
    assert plan.hits == {"files.sync/error": 1}
    assert plan.hit_count == 1
    assert str(plan) == (
        "FaultPlan(seed=42) rules: files.sync#2:error(EIO) proxy.*~1/1:cut; "
        "hits: files.sync/error=1"
    )
    assert str(FaultPlan(1)) == "FaultPlan(seed=1) rules: none; hits: none"
    assert "\n" not in str(plan)


def test_log_is_bounded() -> None:
    plan = FaultPlan(1).chance("p", 1.0, delay_ms=1)
    for _ in range(LOG_SIZE_MAX + 5):
        plan.draw("p")
    assert len(plan.log) == LOG_SIZE_MAX
    assert plan.log[-1].visit == LOG_SIZE_MAX + 5


def test_clear_ends_all_faults() -> None:
    plan = FaultPlan(1).chance("p", 1.0, delay_ms=1)
    assert plan.draw("p") == Fault(FaultAction.DELAY, delay_ms=1)
    plan.clear()
    assert plan.draw("p") is NO_FAULT
    assert plan.drawn == {"p/delay": 1}


def test_nonsense_is_refused() -> None:
    plan = FaultPlan(1)
    with pytest.raises(ValueError, match="give an action"):
        plan.at("p")
    with pytest.raises(ValueError, match="counted from 1"):
        plan.at("p", nth=0, error=1)
    with pytest.raises(ValueError, match="counted from 1"):
        plan.at("p", nth=(), error=1)
    with pytest.raises(ValueError, match="not a probability"):
        plan.chance("p", 1.5, error=1)
    with pytest.raises(ValueError, match="belong together"):
        plan.at("p", action=FaultAction.HANG)
    with pytest.raises(ValueError, match="belong together"):
        plan.at("p", action=FaultAction.DROP, gate=Gate())


def test_gate_holds_until_it_is_opened() -> None:
    gate = Gate()
    passed: list[str] = []
    assert not gate.wait_reached(0.0)

    def pass_through() -> None:
        gate.pass_through()
        passed.append("through")

    thread = threading.Thread(target=pass_through)
    thread.start()
    assert gate.wait_reached()
    assert passed == []
    gate.open()
    thread.join(10)
    assert passed == ["through"]
    gate.pass_through()  # stays open


def test_draws_from_threads_are_all_counted() -> None:
    plan = FaultPlan(1).chance("p", 0.5, action=FaultAction.DROP)
    threads = [threading.Thread(target=actions, args=(plan, "p", 500)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert plan.visits["p"] == 2000
    single = FaultPlan(1).chance("p", 0.5, action=FaultAction.DROP)
    assert plan.drawn["p/drop"] == actions(single, "p", 2000).count("drop")
