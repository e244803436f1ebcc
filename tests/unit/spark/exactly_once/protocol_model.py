"""A model of the commit protocol under a seeded scheduler, for the tests beside it.

A world of a log, half messages and drivers runs the real protocol
(``skylark.spark.exactly_once.commit_protocol``) and the real reading of the log
(``skylark.spark.exactly_once.txn_log_records``). Each request is a separate step; which actor
makes the next one, and what becomes of it, is drawn: done, lost before it arrives, done without an
answer, or done much later. Drivers and their tasks die at any step, or are only believed dead and
go on beside their successors. Halves that grow old are asked about; the answers travel like
everything else. In the end the trouble stops, and every row must be there exactly once.

In some schedules the world stands still for days: the log expires up to some record, with or
without a resolver that ends old halves and compares the memory with the log before. Brokers die,
with what they had not written to disk. Drivers may refuse to go on then; an operator counts the
rows of the batch and says whether it was written.

In half of the schedules halves travel together, and so do their ends: then a request that gets no
answer may have been done in part, from its first half on.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, TypeVar

from skylark.client.core.client_message import TxState
from skylark.spark.exactly_once.commit_protocol import (
    Append,
    CommitHalves,
    Confirm,
    DecisionLostError,
    Prepared,
    ReadStatus,
    Remember,
    RollBack,
    StatusView,
    Step,
    Steps,
    abort,
    admit,
    check_manifest,
    commit,
)
from skylark.spark.exactly_once.sink_memory import add_to_memory, cells_to_write, memory_of
from skylark.spark.exactly_once.txn_log_records import (
    Abandon,
    BatchRecord,
    Identity,
    LogRecord,
    Manifest,
    SinkMemory,
    outcome_of,
    status_of,
    walk_back,
)

T = TypeVar("T")

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

    __slots__ = ("born", "copies", "has_expired", "identity", "outcome", "row")

    def __init__(self, identity: Identity, row: tuple[int, int, int], born: int) -> None:
        self.identity = identity
        self.row = row
        self.born = born
        self.outcome: TxState | None = None
        self.has_expired = False
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
        self.first = 0  # of the log; what is before has expired
        self.memory: dict[int, int] = {}
        self.memory_on_disk: dict[int, int] = {}
        self.expires = self.draw() < 0.5
        self.has_resolver = self.draw() < 0.7
        self.refused = 0
        self.is_refused = False
        self.is_stuck = False
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
        low = max(low, self.first)
        return [r for r in self.log[low:high] if not isinstance(r, Manifest)]

    def walk(self, batch: int) -> list[BatchRecord]:
        walk = walk_back(batch, self.first, len(self.log), window=3)
        try:
            low, high = next(walk)
            while True:
                low, high = walk.send(self.batch_records(low, high))
        except StopIteration as stop:
            found: list[BatchRecord] = stop.value
        return found

    def read_status(self, batch: int) -> StatusView:
        status = status_of(self.walk(batch), batch)
        return StatusView(status, len(self.log), self.first, memory_of(self.memory))

    # ---- days go by ------------------------------------------------------------------------------

    def reaffirm(self) -> None:
        """What the resolver does every hour."""
        known = SinkMemory()
        for record in self.walk(1 << 62):
            assert not isinstance(record, Abandon)
            known = add_to_memory(known, record)
        self.memory.update(cells_to_write(memory_of(self.memory), known))

    def is_handed_over(self, half: Half) -> bool:
        """Whether a driver has found the batch done, although this half of it is not."""
        status = self.read_status(half.identity.batch).status
        is_winner = outcome_of(half.identity, status) is TxState.COMMIT
        return half.outcome is None and status.done and is_winner

    def kill_broker(self) -> None:
        self.memory = dict(self.memory_on_disk)

    def let_days_pass(self) -> None:
        """Nothing is on its way any more, halves that nobody has ended and old records are gone."""
        if not self.has_resolver and any(map(self.is_handed_over, self.halves)):
            return  # only a resolver can commit them
        self.late.clear()
        if self.has_resolver:
            self.reaffirm()
            self.now += IMMUNITY + 1
            while self.check_back():
                while self.late:
                    self.deliver_late()
        self.memory_on_disk = dict(self.memory)
        for half in self.halves:
            if half.outcome is None:
                half.outcome, half.has_expired = TxState.ROLLBACK, True
        self.first = self.rng.randint(self.first, len(self.log))
        self.now += 10 * IMMUNITY

    # ---- halves ----------------------------------------------------------------------------------

    def put(self, half: Half) -> int:
        self.halves.append(half)
        return len(self.halves) - 1

    def end(self, index: int, outcome: TxState, *, asked: bool) -> None:
        """END_TRANSACTION."""
        half = self.halves[index]
        if half.has_expired:
            raise DecisionLostError("no such half message")
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
            (index, outcome)
            for index, half in enumerate(self.halves)
            if half.outcome is None
            and self.now - half.born > IMMUNITY
            and (outcome := self.outcome(half.identity)) is not TxState.UNKNOWN
        ]
        if not old:
            return False
        index, outcome = self.rng.choice(old)
        self.late.append(lambda: self.end(index, outcome, asked=True))
        return True

    def outcome(self, identity: Identity) -> TxState:
        return outcome_of(identity, self.read_status(identity.batch).status)

    def deliver_late(self) -> None:
        if self.late:
            effect = self.late.pop(self.rng.randrange(len(self.late)))
            with contextlib.suppress(HandedOverError, DecisionLostError):
                effect()


# ---- drivers -------------------------------------------------------------------------------------


def task(world: World, batch: int, partition: int) -> Generator[None, None, Prepared]:
    """Write one partition: what ``write`` does on an executor."""
    world.attempts += 1
    attempt = f"{world.attempts:016x}"
    view = yield from world.patient(lambda: world.read_status(batch))
    if not admit(SINK, batch, view):
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
        case Remember():
            stored = yield from world.patient(lambda: memory_of(world.memory))
            for cell in cells_to_write(stored, step.memory):
                yield from world.patient(partial(world.memory.update, [cell]))
        case Append():
            return (yield from world.patient(lambda: world.append(step.record)))
        case Confirm():
            batch_records = yield from world.patient(
                lambda: world.batch_records(step.start, step.end + 1)
            )
            return status_of(batch_records, step.batch)
        case CommitHalves():
            record = world.log[step.position] if step.position >= world.first else None
            manifest = check_manifest(record, step.winner, SINK, step.decision.batch)
            yield from end_all(world, manifest, TxState.COMMIT)
        case RollBack():
            for position in step.prepared.manifests:
                manifest = check_manifest(
                    world.log[position], step.prepared, SINK, step.prepared.batch
                )
                yield from end_all(world, manifest, TxState.ROLLBACK)
    return None


def end_all(world: World, manifest: Manifest, outcome: TxState) -> Generator[None, None, None]:
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
        elif dice < 0.15 and world.expires:
            drivers.clear()
            world.let_days_pass()
        elif dice < 0.16 and world.has_resolver:
            world.kill_broker()
        elif dice < 0.3:
            world.memory_on_disk = dict(world.memory)
        if not drivers:
            drivers.append(driver(world, aborting))
        chosen = drivers[int(world.draw() * len(drivers))]
        if not goes_on(world, chosen):
            drivers.remove(chosen)
            if world.committed >= BATCHES and not drivers:
                break
    world.trouble = 0.0
    for left in [*drivers, *(driver(world, aborting) for _ in range(1 + BATCHES))]:
        while goes_on(world, left):
            world.now += 1
        operate(world)
    while world.late:
        world.deliver_late()
    world.now += 10 * IMMUNITY
    while world.check_back():
        while world.late:
            world.deliver_late()
    return counted(world)


def goes_on(world: World, running: Iterator[None]) -> bool:
    world.is_refused = False
    try:
        return next(running, running) is None
    except DecisionLostError:
        world.refused += 1
        world.is_refused = True
        return False


def operate(world: World) -> None:
    """An operator counts the rows of the batch at which a driver refuses to go on."""
    batch = world.committed
    if not world.is_refused:
        return
    copies = {count for row, count in counted(world).items() if row[0] == batch}
    is_decided = world.read_status(batch).status.decision is not None
    if copies == {1}:
        world.memory.update({0: batch + 1, 1: batch + 1})
    elif copies <= {0} and not is_decided:
        world.memory.update({0: batch, 1: batch})
    else:  # a part was written, or all was to be, and the halves have expired
        world.is_stuck = True


def counted(world: World) -> Counter[tuple[int, int, int]]:
    counts = Counter({half.row: 0 for half in world.halves})
    for half in world.halves:
        counts[half.row] += half.copies
    return counts


WANTED = {(b, p, r): 1 for b in range(BATCHES) for p in range(PARTITIONS) for r in range(ROWS)}


def wrong(world: World, aborting: Abort = abort) -> bool:
    try:
        counts = simulate(world, aborting)
    except AssertionError:  # a half was decided both ways
        return True
    return max(counts.values()) > 1 if world.is_stuck else counts != WANTED
