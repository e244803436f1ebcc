"""Commits that are stored as runs equal commits one by one, also after a crash at any point."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest

from skylark.broker.api import Call, Resource
from skylark.broker.transaction.commit_runs import RUN_COUNT_MIN, CommitRunRequest, CommitRuns
from skylark.core.errors import NoPermissionError
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.batch import encode_batch
from skylark.wire.codes import RequestCode
from skylark.wire.end_halves_body import HalfPlace, decode_codes, encode_places
from skylark.wire.headers.txn import EndHalvesRequestHeader
from tests.unit.broker.stored import stored
from tests.unit.broker.transaction.halves import COMMIT, HALF, ROLLBACK, Sent, Shop, killed, shop
from tests.unit.broker.transaction.test_half_batches import COMMON, end, part, placed, unique_id

COUNT: Final = 20
BODIES: Final = [b"m%d" % number for number in range(COUNT)]


async def send_parts(world: Shop, numbers: range, queue_id: int = 1) -> list[HalfPlace]:
    parts = [part(number) for number in numbers]
    answer = await world.send(
        "T", encode_batch(parts), queue_id, COMMON, RequestCode.SEND_HALVES,
        g=str(world.clock.now_ms()),
    )  # fmt: skip
    ext = answer.ext or {}
    ids = ext["msgId"].split(",")
    first = int(ext["queueOffset"])
    return [
        HalfPlace(int(text[-16:], 16), first + at, unique_id(number))
        for at, (text, number) in enumerate(zip(ids, numbers, strict=True))
    ]


def requests(world: Shop, places: list[HalfPlace], **changes: Any) -> list[int]:
    """How many commits each request has that these places become; 0 for single ones."""
    values: dict[str, Any] = {
        "topic": "T",
        "producer_group": "pg",
        "commit_or_rollback": COMMIT,
    } | changes
    found = CommitRuns(world.transactions).requests(EndHalvesRequestHeader(**values), places)
    return [each.count if isinstance(each, CommitRunRequest) else 0 for each in found]


# ---- what becomes a run --------------------------------------------------------------------------


async def test_neighbours_with_one_destination_are_a_run(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        one = await send_parts(world, range(9))
        other = await send_parts(world, range(9, 19), queue_id=2)
        assert requests(world, [*one, *other]) == [9, 10]
        assert requests(world, [*other, *one]) == [10, 9]
        assert requests(world, one[: RUN_COUNT_MIN - 1]) == [0] * (RUN_COUNT_MIN - 1)
        await world.clock.advance(seconds=1)
        later = await send_parts(world, range(19, 28))
        await world.send("T", b"something else")
        last = await send_parts(world, range(28, 37))
        assert requests(world, [*later, *last]) == [9, 9]


async def test_what_is_no_run(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        places = await send_parts(world, range(COUNT))
        singles = [0] * COUNT
        assert requests(world, places[::-1]) == singles
        assert requests(world, [*places[:-1], places[0]]) == singles
        assert requests(world, places, producer_group="other") == singles
        assert requests(world, places, commit_or_rollback=ROLLBACK) == singles
        wrong = places[9]._replace(unique_id=unique_id(99))
        assert requests(world, [*places[:9], wrong, *places[10:]]) == singles
        assert await end(world, places[12:13]) == [0]  # it is decided
        assert requests(world, places) == singles
        assert requests(world, places[:12]) == [12]
        await world.clock.advance(seconds=901)  # too late
        assert requests(world, places[:12]) == [0] * 12


@pytest.mark.parametrize("name", ["TIMER_DELAY_MS", "DELAY", "PGROUP", "UNIQ_KEY"])
async def test_a_half_message_that_differs_is_committed_alone(tmp_path: Path, name: str) -> None:
    async with shop(tmp_path) as world:
        more: dict[str, Any] = {
            "TIMER_DELAY_MS": {"TIMER_DELAY_MS": "1000"},
            "DELAY": {"DELAY": "1"},
            "PGROUP": {"PGROUP": "q"},
            "UNIQ_KEY": {},
        }[name]
        places = []
        for number in range(12):
            found: Sent = await world.producer.send(
                unique_id(number),
                CHECK_IMMUNITY_TIME_IN_SECONDS="900",
                **(more if number == 5 else {}),
            )
            places.append(HalfPlace(found.log_offset, found.queue_offset, unique_id(number)))
        runs = requests(world, places)
        assert runs == ([12] if name == "UNIQ_KEY" else [0] * 12)


async def test_a_wrong_place_within_a_run_is_found(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        places = await send_parts(world, range(COUNT))
        wrong = places[9]._replace(unique_id=unique_id(99))
        assert await end(world, [*places[:9], wrong, *places[10:]]) == [*[0] * 9, 1]
        assert world.bodies() == BODIES[:9]
        assert await end(world, places) == [0] * COUNT
        assert world.bodies() == BODIES


# ---- equal to one by one -------------------------------------------------------------------------


def text_of(rng: random.Random, number: int) -> str:
    keys = rng.choice(["", "", f"KEYS\x01k{number}\x02", "TAGS\x01A\x02", "x\x01\xe4\x02"])
    return keys + rng.choice(["", f"n\x01{number}\x02"])


async def some_halves(world: Shop, rng: random.Random) -> list[HalfPlace]:
    """Half messages of many kinds, between them other messages."""
    places: list[HalfPlace] = []
    number = 0
    for _ in range(rng.randrange(3, 9)):
        kind = rng.choice(["batch", "batch", "batch", "single", "message", "time", "decided"])
        if kind == "batch":
            alike = rng.random() < 0.5
            parts = [
                part(
                    number + at,
                    "" if alike else text_of(rng, at),
                    None if alike else rng.randbytes(rng.randrange(1, 50)),
                )
                for at in range(rng.randrange(1, 40))
            ]
            answer = await world.send(
                "T", encode_batch(parts), 1, COMMON, RequestCode.SEND_HALVES,
                g=str(world.clock.now_ms()),
            )  # fmt: skip
            places += placed(world, answer, *parts)
            number += len(parts)
        elif kind == "single":
            more: dict[str, Any] = rng.choice(
                [{}, {"DELAY": "1"}, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "900"}]
            )
            sent = await world.producer.send(unique_id(number), **more)
            places.append(HalfPlace(sent.log_offset, sent.queue_offset, unique_id(number)))
            number += 1
        elif kind == "message":
            await world.send("T", b"other", 1)
        elif kind == "time":
            await world.clock.advance(seconds=rng.choice([1, 31]))
        elif places:
            place = rng.choice(places)
            decided = Sent(place.log_offset, place.queue_offset, place.unique_id)
            await world.producer.end(decided, rng.choice([COMMIT, COMMIT, ROLLBACK]))
    if rng.random() < 0.2:
        rng.shuffle(places)
    return places


async def one_by_one(world: Shop, places: list[HalfPlace]) -> list[int]:
    codes: list[int] = []
    for place in places:
        sent = Sent(place.log_offset, place.queue_offset, place.unique_id)
        codes.append((await world.producer.end(sent)).code)
        if codes[-1] not in (0, 604):
            break
    return codes


def state_of(world: Shop) -> list[object]:
    """All that consumers, check-backs and metrics see."""
    high = world.features.store.reader.max_offset(HALF, 0)
    decisions, counts = world.transactions.state.decisions, world.transactions.counts
    return [
        [
            (record.queue_offset, record.body, record.raw_properties, record.flag, record.sys_flag,
             record.born_timestamp, record.born_host, record.prepared_transaction_offset)
            for topic, queue_id in (("T", 1), ("SCHEDULE_TOPIC_XXXX", 0))
            for record in world.records(topic, queue_id)
        ],
        [decisions.outcome_at(offset) for offset in range(high)],
        (counts.committed["T"], counts.waiting["T"], counts.rolled_back["T"]),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
async def test_any_request_equals_its_commits_one_by_one(tmp_path: Path, seed: int) -> None:
    seen = []
    for name in ("together", "alone"):
        async with shop(tmp_path / name) as world:
            places = await some_halves(world, random.Random(seed))
            if name == "together":
                codes = await end(world, places) if places else []
            else:
                codes = await one_by_one(world, places)
            world.transactions.write_ops_now()
            named = b"".join(world.op_bodies())
            seen.append((codes, state_of(world), sorted(named.split(b","))))
    assert seen[0] == seen[1]


# ---- crashes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_size_max", [1, 30, 4096])
async def test_a_kill_after_the_append_repeats_nothing(tmp_path: Path, op_size_max: int) -> None:
    async with shop(tmp_path / "one", transactionOpMsgMaxSize=str(op_size_max)) as world:
        places = await send_parts(world, range(COUNT))
        assert await end(world, places[:12]) == [0] * 12
        left = killed(world, tmp_path / "two")
    async with shop(left) as world:
        assert await end(world, places) == [0] * COUNT
        assert world.bodies() == BODIES
        await world.rounds(2)
        assert world.producer.check_backs == []


@pytest.mark.parametrize("kept", [0, 1, 7, COUNT - 1, COUNT])
async def test_a_power_loss_keeps_the_first_commits_of_a_run(tmp_path: Path, kept: int) -> None:
    """The bytes from one of the final messages on are lost; also what a kill in the append leaves,
    with none of them, since the size of the first is written last.
    """
    async with shop(tmp_path / "one") as world:
        places = await send_parts(world, range(COUNT))
        assert await end(world, places) == [0] * COUNT
        finals = [record.log_offset for record in world.records("T", 1)]
        left = killed(world, tmp_path / "two")
        log = world.features.store.log.files.last
        end_of_log = log.wrote
    (path,) = (
        path for path in (left / "store" / "commitlog").iterdir() if path.name == log.path.name
    )
    start = finals[kept] if kept < COUNT else end_of_log
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(end_of_log - start))
    async with shop(left) as world:
        assert world.bodies() == BODIES[:kept]
        assert await end(world, places) == [0] * COUNT
        assert world.bodies() == BODIES
        assert await end(world, places) == [0] * COUNT
        assert world.bodies() == BODIES


async def test_a_run_that_is_not_stored_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(tmp_path) as world:
        places = await send_parts(world, range(COUNT))
        with monkeypatch.context() as patch:
            refused = PutResult(PutStatus.SERVICE_NOT_AVAILABLE)
            patch.setattr(world.features.store, "put_run", lambda drafts: [refused] * len(drafts))
            (code,) = await end(world, places)
        assert code == PutStatus.SERVICE_NOT_AVAILABLE.code
        assert world.bodies() == []
        assert world.transactions.counts.waiting["T"] == COUNT
        assert await end(world, places) == [0] * COUNT
        assert world.bodies() == BODIES


async def test_the_response_waits_for_the_disk(tmp_path: Path) -> None:
    async with shop(tmp_path / "one", flushDiskType="SYNC_FLUSH") as world:
        places = await send_parts(world, range(COUNT))
        assert await end(world, places) == [0] * COUNT
        log = world.features.store.log.files
        assert log.flushed_where > max(record.log_offset for record in world.records("T", 1))


# ---- interceptors --------------------------------------------------------------------------------


async def test_an_interceptor_sees_a_run_as_one_decision(tmp_path: Path) -> None:
    class Closed:
        def __init__(self) -> None:
            self.calls: list[Call] = []

        def before(self, call: Call) -> None:
            self.calls.append(call)
            if call.operation.name == "END_TRANSACTION":
                raise NoPermissionError("closed")

        def after(self, _call: Call, _code: int | None) -> None:
            pass

    closed = Closed()
    async with stored(tmp_path, None, [closed]) as world:
        parts = [part(number) for number in range(COUNT)]
        answer = await world.send("T", encode_batch(parts), 1, COMMON, RequestCode.SEND_HALVES)
        ids = (answer.ext or {})["msgId"].split(",")
        places = [HalfPlace(int(text[-16:], 16), at, unique_id(at)) for at, text in enumerate(ids)]
        ext = {"topic": "X", "producerGroup": "pg", "commitOrRollback": "8"}
        answer = await world.call(RequestCode.END_HALVES, ext, encode_places(places))
        assert decode_codes(answer.body, COUNT) == [16]
        call = closed.calls[-1]
        assert (call.operation.name, call.resources) == (
            "END_TRANSACTION", [Resource("topic", "T")]
        )  # fmt: skip
        assert isinstance(call.request, CommitRunRequest)
        assert world.records("T", 1) == []
