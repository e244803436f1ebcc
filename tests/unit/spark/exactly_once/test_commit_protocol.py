"""The commit protocol under a seeded scheduler: every row once, under any failure.

A world of a log, half messages and drivers runs the real protocol
(``skylark.spark.exactly_once.commit_protocol``) and the real reading of the log
(``skylark.spark.exactly_once.txn_log_records``). Each request is a separate step; which actor
makes the next one, and what becomes of it, is drawn: done, lost before it arrives, done without an
answer, or done much later. Drivers and their tasks die at any step, or are only believed dead and
go on beside their successors. Halves that grow old are asked about; the answers travel like
everything else. In the end the trouble stops, and every row must be there exactly once.

In half of the schedules halves travel together, and so do their ends: then a request that gets no
answer may have been done in part, from its first half on.

Broken variants of broker and protocol show that the model would notice.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, TypeVar

import pytest

from skylark.client.core.client_message import TxState
from skylark.spark.exactly_once.commit_protocol import (
    Append,
    CommitHalves,
    Confirm,
    Prepared,
    ReadStatus,
    RollBack,
    StatusView,
    Step,
    Steps,
    abort,
    commit,
)
from skylark.spark.exactly_once.txn_log_records import (
    BatchRecord,
    BatchStatus,
    Identity,
    LogRecord,
    Manifest,
    outcome_of,
    status_of,
    walk_back,
)

T = TypeVar("T")

SCHEDULES = 20_000
SINK = "sink"
BATCHES = 2
PARTITIONS = 2
ROWS = 2
STEPS_MAX = 160  # of trouble; then it gets calm
IMMUNITY = 40  # steps


class LostError(Exception):
    """No answer came."""


class HandedOverError(Exception):
    """Too late for the driver: only the answer to a question counts (604)."""


class Half:
    """A half message at the broker."""

    __slots__ = ("born", "copies", "identity", "outcome", "row")

    def __init__(self, identity: Identity, row: tuple[int, int, int], born: int) -> None:
        self.identity = identity
        self.row = row
        self.born = born
        self.outcome: TxState | None = None
        self.copies = 0


class World:
    """Everything that survives the death of a driver."""

    def __init__(self, seed: int, *, idempotent: bool = True, trouble: float = 0.12) -> None:
        self.rng = random.Random(seed)
        self.draw = self.rng.random
        self.idempotent = idempotent
        self.trouble = trouble
        self.together = self.draw() < 0.5  # many halves in one request
        self.now = 0
        self.log: list[LogRecord] = []
        self.halves: list[Half] = []
        self.late: list[Callable[[], object]] = []  # requests on their way
        self.committed = 0  # batches in Spark's checkpoint
        self.attempts = 0

    # ---- requests --------------------------------------------------------------------------------

    def request(
        self, effect: Callable[[], T], part: Callable[[], object] | None = None
    ) -> Generator[None, None, T]:
        """``part``: what the request may do instead if its reply is lost."""
        yield
        if self.draw() >= self.trouble:
            return effect()
        kind = self.draw()
        if kind < 0.3:
            raise LostError
        if kind < 0.7:
            (part or effect)()
            raise LostError
        self.late.append(effect)
        raise LostError

    def patient(
        self, effect: Callable[[], T], part: Callable[[], object] | None = None
    ) -> Generator[None, None, T]:
        """Repeat what has no answer, once."""
        for _ in range(1):
            try:
                return (yield from self.request(effect, part))
            except LostError:
                continue
        return (yield from self.request(effect, part))

    # ---- the log ---------------------------------------------------------------------------------

    def append(self, record: LogRecord) -> int:
        self.log.append(record)
        return len(self.log) - 1

    def batch_records(self, low: int, high: int) -> list[BatchRecord]:
        return [r for r in self.log[low:high] if not isinstance(r, Manifest)]

    def read_status(self, batch: int) -> StatusView:
        end = len(self.log)
        walk = walk_back(batch, 0, end, window=3)
        try:
            low, high = next(walk)
            while True:
                low, high = walk.send(self.batch_records(low, high))
        except StopIteration as stop:
            status: BatchStatus = stop.value
        return StatusView(status, end)

    # ---- halves ----------------------------------------------------------------------------------

    def put(self, half: Half) -> int:
        self.halves.append(half)
        return len(self.halves) - 1

    def end(self, index: int, outcome: TxState, *, asked: bool) -> None:
        """END_TRANSACTION."""
        half = self.halves[index]
        if half.outcome is None:
            if not asked and self.now - half.born > IMMUNITY:
                raise HandedOverError
            half.outcome = outcome
        elif self.idempotent:
            assert half.outcome is outcome, f"{half.identity} was {half.outcome}, now {outcome}"
            return
        if outcome is TxState.COMMIT:
            half.copies += 1

    def put_all(self, halves: list[Half]) -> list[int]:
        """SEND_HALVES."""
        return [self.put(half) for half in halves]

    def put_some(self, halves: list[Half]) -> None:
        """SEND_HALVES of a broker that dies within."""
        self.put_all(halves[: self.rng.randint(0, len(halves))])

    def end_all(self, indexes: tuple[int, ...], outcome: TxState) -> None:
        """END_HALVES; what is too late is passed over."""
        for index in indexes:
            with contextlib.suppress(HandedOverError):
                self.end(index, outcome, asked=False)

    def end_some(self, indexes: tuple[int, ...], outcome: TxState) -> None:
        """END_HALVES of a broker that dies within."""
        self.end_all(indexes[: self.rng.randint(0, len(indexes))], outcome)

    def check_back(self) -> bool:
        """The broker asks about an old half; whether there is an answer, which goes its own way."""
        old = [
            index
            for index, half in enumerate(self.halves)
            if half.outcome is None and self.now - half.born > IMMUNITY
        ]
        if not old:
            return False
        index = self.rng.choice(old)
        identity = self.halves[index].identity
        outcome = outcome_of(identity, self.read_status(identity.batch).status)
        if outcome is TxState.UNKNOWN:
            return False
        self.late.append(lambda: self.end(index, outcome, asked=True))
        return True

    def deliver_late(self) -> None:
        if self.late:
            effect = self.late.pop(self.rng.randrange(len(self.late)))
            with contextlib.suppress(HandedOverError):
                effect()


# ---- drivers -------------------------------------------------------------------------------------


def task(world: World, batch: int, partition: int) -> Generator[None, None, Prepared]:
    """Write one partition: what ``write`` does on an executor."""
    world.attempts += 1
    attempt = f"{world.attempts:016x}"
    view = yield from world.patient(lambda: world.read_status(batch))
    if view.status.decision is not None:
        return Prepared(
            sink=SINK, batch=batch, partition=partition, attempt=attempt, count=0, already=True
        )
    indexes: list[int] = []
    void: list[int] = []
    seq = 0
    portions = [range(ROWS)] if world.together else [range(row, row + 1) for row in range(ROWS)]
    for rows in portions:
        while True:
            halves = [
                Half(
                    Identity(SINK, batch, partition, attempt, seq + at),
                    (batch, partition, row),
                    world.now,
                )
                for at, row in enumerate(rows)
            ]
            seq += len(halves)
            put, part = partial(world.put_all, halves), partial(world.put_some, halves)
            try:
                indexes += yield from world.request(put, part if world.together else None)
                break
            except LostError:
                void += [half.identity.seq for half in halves]
                if len(void) > 6:
                    raise
    manifest = Manifest(
        sink=SINK, batch=batch, partition=partition, attempt=attempt, chunk=0, ordered=False,
        queues=(), targets=(), log_offsets=tuple(indexes), queue_offsets=(), seqs=(),
    )  # fmt: skip
    position = yield from world.patient(lambda: world.append(manifest))
    return Prepared(
        sink=SINK, batch=batch, partition=partition, attempt=attempt, count=ROWS,
        manifests=(position,), void=tuple(void),
    )  # fmt: skip


def run_step(world: World, step: Step) -> Generator[None, None, Any]:
    match step:
        case ReadStatus():
            return (yield from world.patient(lambda: world.read_status(step.batch)))
        case Append():
            return (yield from world.patient(lambda: world.append(step.record)))
        case Confirm():
            batch_records = yield from world.patient(
                lambda: world.batch_records(step.start, step.end + 1)
            )
            return status_of(batch_records, step.batch)
        case CommitHalves():
            yield from end_all(world, step.position, TxState.COMMIT)
        case RollBack():
            for position in step.prepared.manifests:
                yield from end_all(world, position, TxState.ROLLBACK)
    return None


def end_all(world: World, position: int, outcome: TxState) -> Generator[None, None, None]:
    manifest = world.log[position]
    assert isinstance(manifest, Manifest)
    if world.together:
        ends = partial(world.end_all, manifest.log_offsets, outcome)
        yield from world.patient(ends, partial(world.end_some, manifest.log_offsets, outcome))
        if world.draw() < world.trouble / 4:
            world.late.append(ends)
        return
    for index in manifest.log_offsets:
        end = partial(world.end, index, outcome, asked=False)
        try:
            yield from world.patient(end)
        except HandedOverError:
            continue
        if world.draw() < world.trouble / 4:
            world.late.append(end)


def run(world: World, steps: Steps) -> Generator[None, None, None]:
    result = None
    try:
        while True:
            result = yield from run_step(world, steps.send(result))
    except StopIteration:
        return


Abort = Callable[[list[Prepared | None]], Steps]


def driver(world: World, aborting: Abort = abort) -> Iterator[None]:
    """A query from its checkpoint on; ends at the last batch, or with the first failure."""
    while world.committed < BATCHES:
        batch = world.committed
        messages: list[Prepared] = []
        try:
            while len(messages) < PARTITIONS:
                written = yield from task(world, batch, len(messages))
                messages.append(written)
        except LostError:
            heard: list[Prepared | None] = [*messages, *[None] * (PARTITIONS - len(messages))]
            yield from aborted(world, aborting, heard)
            return
        try:
            yield from run(world, commit(SINK, batch, messages))
        except LostError:
            yield from aborted(world, aborting, list(messages))
            return
        yield
        world.committed = max(world.committed, batch + 1)


def aborted(
    world: World, aborting: Abort, messages: list[Prepared | None]
) -> Generator[None, None, None]:
    with contextlib.suppress(LostError):
        yield from run(world, aborting(messages))


def simulate(world: World, aborting: Abort = abort) -> Counter[tuple[int, int, int]]:
    """Trouble, then calm; how often each row was committed."""
    drivers = [driver(world, aborting)]
    for _ in range(STEPS_MAX):
        world.now += 1
        dice = world.draw()
        if dice < 0.04:
            world.check_back()
        elif dice < 0.10:
            world.deliver_late()
        elif dice < 0.115 and drivers:
            drivers.pop(0)  # dies
        elif dice < 0.13 and len(drivers) == 1:
            drivers.append(driver(world, aborting))  # the one before is believed dead
        elif dice < 0.14:
            world.now += IMMUNITY  # everybody stalls
        if not drivers:
            drivers.append(driver(world, aborting))
        chosen = drivers[int(world.draw() * len(drivers))]
        if next(chosen, chosen) is chosen:
            drivers.remove(chosen)
            if world.committed >= BATCHES and not drivers:
                break
    world.trouble = 0.0
    for left in [*drivers, driver(world, aborting)]:
        for _ in left:
            world.now += 1
    while world.late:
        world.deliver_late()
    world.now += 10 * IMMUNITY
    while world.check_back():
        while world.late:
            world.deliver_late()
    counts = Counter({half.row: 0 for half in world.halves})
    for half in world.halves:
        counts[half.row] += half.copies
    return counts


WANTED = {(b, p, r): 1 for b in range(BATCHES) for p in range(PARTITIONS) for r in range(ROWS)}


def wrong(world: World, aborting: Abort = abort) -> bool:
    try:
        return simulate(world, aborting) != WANTED
    except AssertionError:  # a half was decided both ways
        return True


def test_every_row_appears_once_in_every_schedule() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        world = World(seed)
        assert simulate(world) == WANTED, f"seed {seed}"
        assert world.committed == BATCHES, f"seed {seed}"
        open_halves = [half for half in world.halves if half.outcome is None]
        assert not open_halves, f"seed {seed}: {len(open_halves)} halves stay undecided"
        seen["losers"] += any(half.outcome is TxState.ROLLBACK for half in world.halves)
        seen["retried"] += world.attempts > BATCHES * PARTITIONS
        seen["together"] += world.together
    # The schedules are about something: in most of them attempts were repeated, and some lost.
    assert seen["retried"] > SCHEDULES // 2
    assert seen["losers"] > SCHEDULES // 4
    assert SCHEDULES * 0.4 < seen["together"] < SCHEDULES * 0.6


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

    monkeypatch.setitem(globals(), "outcome_of", forgetful)
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
        return status_of(found, batch)

    monkeypatch.setitem(globals(), "walk_back", early)
    assert any(wrong(World(seed, trouble=0.2)) for seed in range(20_000))
