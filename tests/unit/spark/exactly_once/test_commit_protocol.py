"""The commit protocol under a seeded scheduler: every row once, under any failure.

``protocol_model`` describes the world in which it runs. Broken variants of broker and protocol show
that the model would notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from skylark.client.core.client_message import TxState
from skylark.spark.exactly_once.commit_protocol import (
    Prepared,
    ReadStatus,
    Remember,
    RollBack,
    StatusView,
    Step,
    Steps,
)
from skylark.spark.exactly_once.txn_log_records import (
    BatchRecord,
    BatchStatus,
    Identity,
    outcome_of,
)
from tests.unit.spark.exactly_once import protocol_model
from tests.unit.spark.exactly_once.protocol_model import (
    BATCHES,
    PARTITIONS,
    SINK,
    World,
    run_step,
    wrong,
)

SCHEDULES = 20_000


def test_every_row_appears_once_in_every_schedule() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        world = World(seed)
        assert not wrong(world), f"seed {seed}"
        assert world.committed == BATCHES or world.is_stuck, f"seed {seed}"
        open_halves = [half for half in world.halves if half.outcome is None]
        assert not open_halves, f"seed {seed}: {len(open_halves)} halves stay undecided"
        seen["expired"] += world.first > 0
        seen["refused"] += world.refused > 0
        seen["stuck"] += world.is_stuck
        seen["losers"] += any(half.outcome is TxState.ROLLBACK for half in world.halves)
        seen["retried"] += world.attempts > BATCHES * PARTITIONS
        seen["together"] += world.together
    # The schedules are about something: in most of them attempts were repeated, and some lost.
    assert seen["retried"] > SCHEDULES // 2
    assert seen["losers"] > SCHEDULES // 4
    assert SCHEDULES * 0.4 < seen["together"] < SCHEDULES * 0.6
    assert seen["expired"] > SCHEDULES // 10
    # Drivers refuse where nobody knows, and only there.
    assert 0 < seen["stuck"] < seen["refused"] < seen["expired"] // 3, seen


def test_the_model_detects_a_broker_that_commits_twice() -> None:
    assert any(wrong(World(seed, idempotent=False)) for seed in range(300))


def test_the_model_detects_an_abort_that_undoes_a_decided_batch() -> None:
    def careless(messages: list[Prepared | None]) -> Steps:
        for message in messages:
            if message is not None and message.manifests:
                yield RollBack(message)

    assert any(wrong(World(seed), careless) for seed in range(300))


def test_the_model_detects_an_abort_that_checks_and_then_undoes() -> None:
    """The decision may be on its way: looking is not enough."""

    def hasty(messages: list[Prepared | None]) -> Steps:
        written = [message for message in messages if message is not None]
        if written:
            view: StatusView = yield ReadStatus(SINK, written[0].batch)
            if view.status.decision is None:
                for message in written:
                    if message.manifests:
                        yield RollBack(message)

    assert any(wrong(World(seed, trouble=0.3), hasty) for seed in range(3_000))


def test_the_model_detects_void_halves_that_are_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = outcome_of

    def forgetful(identity: Identity, status: BatchStatus) -> TxState:
        decision = status.decision
        if decision is not None and decision.winner(identity.partition, identity.attempt):
            return TxState.COMMIT
        return real(identity, status)

    monkeypatch.setattr(protocol_model, "outcome_of", forgetful)
    assert any(wrong(World(seed)) for seed in range(300))


def test_the_model_detects_a_walk_that_stops_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision of an earlier batch may come late, after those of later ones."""

    def early(batch: int, first: int, end: int, window: int) -> Any:
        del window
        found: list[BatchRecord] = []
        for low in range(end - 1, first - 1, -1):
            part = yield low, low + 1
            found[:0] = part
            if any(batch_record.batch < batch for batch_record in part):
                break
        return found

    monkeypatch.setattr(protocol_model, "walk_back", early)
    assert any(wrong(World(seed, trouble=0.2)) for seed in range(20_000))


def test_the_model_detects_a_sink_that_trusts_an_expired_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a memory a batch that was done before the log expired is written again."""

    def trusting(_sink: str, _batch: int, view: StatusView) -> bool:
        return view.status.decision is None

    monkeypatch.setattr(protocol_model, "admit", trusting)
    monkeypatch.setattr("skylark.spark.exactly_once.commit_protocol.admit", trusting)
    assert any(wrong(World(seed)) for seed in range(3_000))


@pytest.mark.parametrize("kind", ["deciding", "done"])
def test_the_model_detects_a_driver_that_does_not_remember(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run_step

    def forgetful(world: World, step: Step) -> Generator[None, None, Any]:
        if isinstance(step, Remember) and getattr(step.memory, kind) >= 0:
            return None
        return (yield from real(world, step))

    def is_wrong(seed: int) -> bool:
        world = World(seed)
        world.has_resolver = False
        return wrong(world) or (kind == "done" and world.refused > 0 and not world.is_stuck)

    monkeypatch.setattr(protocol_model, "run_step", forgetful)
    assert any(is_wrong(seed) for seed in range(3_000))


def test_the_model_detects_a_resolver_that_does_not_repair_memories(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A killed broker forgets its last offsets."""
    monkeypatch.setattr(World, "reaffirm", lambda _: None)
    assert any(wrong(World(seed, trouble=0.2)) for seed in range(20_000))
