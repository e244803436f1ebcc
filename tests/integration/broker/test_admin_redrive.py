"""Dead letters on real brokers: counted, read, and sent again once, however often it is tried."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from skylark.admin.admin_client import Admin
from skylark.admin.errors import NotFoundError
from skylark.admin.redrive import RedriveProgress, progress_group
from skylark.admin.redrive_sender import REDRIVEN_FROM
from skylark.admin.topic_queues import commit_offset
from skylark.client.core.client_message import Message
from skylark.core.errors import (
    ClientError,
    ConnectError,
    InvalidParameterError,
    RequestTimeoutError,
)
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from tests.unit.admin.sites import Site, bury, indexed, running_site

GROUP = "billing"
TOPIC = "orders"


async def with_dead_letters(site: Site, admin: Admin, count: int, **given: Any) -> list[str]:
    """A topic whose messages have all died; their unique ids."""
    await admin.topics.create(TOPIC, queue_count=2)
    await admin.groups.create(GROUP)
    sent = await site.send(
        *(
            Message(TOPIC, b"%d" % n, tag="AB"[n % 2], keys=["k"], properties={"n": str(n)})
            for n in range(count)
        ),
        **given,
    )
    for result in sent:
        await bury(admin, GROUP, await admin.messages.at(result.queue, result.queue_offset))
    ids = [result.msg_id for result in sent]
    await indexed(admin, f"%DLQ%{GROUP}", *ids)
    return ids


async def copies(admin: Admin, topic: str = TOPIC) -> Counter[str]:
    """How often each body was sent again."""
    found = [m async for m in admin.messages.between(topic) if REDRIVEN_FROM in m.properties]
    return Counter(message.body.decode() for message in found)


def once(*numbers: int) -> Counter[str]:
    return Counter(str(number) for number in numbers)


async def test_letters_are_counted_and_read(tmp_path: Path) -> None:
    async with running_site(tmp_path, broker_count=2) as (site, admin):
        assert await admin.dlq.all() == []
        with pytest.raises(NotFoundError, match="group billing has no dead letters"):
            await admin.dlq.of(GROUP)
        ids = await with_dead_letters(site, admin, 6)
        (found,) = await admin.dlq.all()
        assert (found.group, found.topic) == (GROUP, "%DLQ%billing")
        assert (found.count, found.pending) == (6, 6)
        letters = [letter async for letter in admin.dlq.messages(GROUP)]
        assert sorted(letter.msg_id for letter in letters) == sorted(ids)
        assert {letter.properties["RETRY_TOPIC"] for letter in letters} == {TOPIC}
        assert len([letter async for letter in admin.dlq.messages(GROUP, limit=2)]) == 2


async def test_all_letters_are_sent_again_once(tmp_path: Path) -> None:
    async with running_site(tmp_path, broker_count=2) as (site, admin):
        ids = await with_dead_letters(site, admin, 6)
        seen: list[RedriveProgress] = []
        plan = await admin.dlq.redrive(GROUP, dry_run=True)
        assert (plan.counts.sent, plan.is_complete) == (6, True)
        assert {letter.outcome for letter in plan.letters} == {"planned"}
        assert await copies(admin) == once()
        report = await admin.dlq.redrive(GROUP, on_progress=seen.append)
        assert (report.counts.total, report.counts.sent, report.stopped) == (6, 6, None)
        assert [progress.seen for progress in seen] == [1, 2, 3, 4, 5, 6]
        assert await copies(admin) == once(*range(6))
        again = await admin.dlq.redrive(GROUP)
        assert (again.counts.total, again.counts.sent) == (0, 0)
        assert (await admin.dlq.of(GROUP)).pending == 0
        await indexed(admin, TOPIC, *ids)
        whole = await admin.dlq.redrive(GROUP, restart=True)
        assert (whole.counts.total, whole.counts.already, whole.counts.sent) == (6, 6, 0)
        assert await copies(admin) == once(*range(6))


async def test_what_is_sent_is_the_message_of_old(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        (old_id,) = await with_dead_letters(site, admin, 1)
        report = await admin.dlq.redrive(GROUP)
        (letter,) = report.letters
        assert letter.new_id is not None
        copy = await admin.messages.get(letter.new_id)
        assert (copy.topic, copy.body, copy.tag, copy.keys) == (TOPIC, b"0", "A", ("k",))
        assert (copy.msg_id, copy.reconsume_times) == (old_id, 0)
        assert copy.properties["n"] == "0"
        assert copy.properties[REDRIVEN_FROM] == letter.dead_letter_id
        original = (await admin.messages.by_unique_id(TOPIC, old_id))[0]
        assert copy.born_time == original.born_time
        added = copy.properties.keys() - original.properties.keys()
        assert added == {REDRIVEN_FROM}


async def test_a_letter_that_dies_again_can_be_sent_again(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await with_dead_letters(site, admin, 1)
        (first,) = (await admin.dlq.redrive(GROUP)).letters
        assert first.new_id is not None
        await bury(admin, GROUP, await admin.messages.get(first.new_id))
        (second,) = (await admin.dlq.redrive(GROUP)).letters
        assert (second.outcome, second.queue_offset) == ("sent", 1)
        assert await copies(admin) == Counter({"0": 2})


async def test_some_letters_now_and_the_rest_later(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        ids = await with_dead_letters(site, admin, 6)
        filtered = await admin.dlq.redrive(GROUP, where=lambda m: m.tag == "B")
        assert (filtered.counts.sent, filtered.counts.filtered) == (3, 3)
        assert (await admin.dlq.of(GROUP)).pending == 6  # a filter leaves holes
        letters = [letter async for letter in admin.dlq.messages(GROUP)]
        picked = await admin.dlq.redrive(GROUP, messages=[letters[0]])
        assert (picked.counts.total, picked.counts.sent) == (1, 1)
        await indexed(admin, TOPIC, *ids)
        rest = await admin.dlq.redrive(GROUP)
        assert (rest.counts.sent, rest.counts.already) == (2, 4)
        assert await copies(admin) == once(*range(6))
        with pytest.raises(InvalidParameterError, match="is not a dead letter of billing"):
            await admin.dlq.redrive(GROUP, messages=await admin.messages.by_key(TOPIC, "k"))


async def test_a_limit_ends_a_run_and_the_next_goes_on(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await with_dead_letters(site, admin, 5)
        first = await admin.dlq.redrive(GROUP, limit=2)
        assert (first.counts.sent, first.stopped) == (2, "the limit of 2 messages is reached")
        committed = await admin.offsets.committed(progress_group(GROUP), f"%DLQ%{GROUP}")
        assert list(committed.values()) == [2]
        second = await admin.dlq.redrive(GROUP)
        assert (second.counts.total, second.counts.sent) == (3, 3)
        assert await copies(admin) == once(*range(5))


async def test_only_the_group_that_failed_may_get_them(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await with_dead_letters(site, admin, 2)
        await admin.topics.create(f"%RETRY%{GROUP}", queue_count=1)
        report = await admin.dlq.redrive(GROUP, to="group")
        assert [letter.topic for letter in report.letters] == [f"%RETRY%{GROUP}"] * 2
        assert await copies(admin) == once()
        assert await copies(admin, f"%RETRY%{GROUP}") == once(0, 1)
        found = [m async for m in admin.messages.between(f"%RETRY%{GROUP}")]
        assert {message.topic for message in found} == {TOPIC}  # as the consumer shows it


class KilledError(Exception):
    """Stands for the end of a process."""


class LostAnswers:
    """Lets sends through to the broker and loses the answers of some of them."""

    def __init__(self, admin: Admin, lost: set[int]) -> None:
        self._link = admin.session._link
        self._call = self._link.call
        self._lost = lost
        self.count = 0

    async def call(self, address: str, request: Command, timeout_s: float = 3.0) -> Command:
        answer = await self._call(address, request, timeout_s)
        if request.code == RequestCode.SEND_MESSAGE_V2:
            self.count += 1
            if self.count in self._lost:
                await asyncio.sleep(0)
                raise RequestTimeoutError("the answer got lost")
        return answer


async def test_a_lost_answer_does_not_send_it_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_site(tmp_path) as (site, admin):
        await with_dead_letters(site, admin, 4)
        lost = LostAnswers(admin, {2})
        monkeypatch.setattr(admin.session._link, "call", lost.call)
        report = await admin.dlq.redrive(GROUP)
        assert (report.counts.sent, report.counts.failed, lost.count) == (4, 0, 4)
        assert await copies(admin) == once(*range(4))


async def test_a_run_that_was_killed_is_repeated_without_doubles(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        ids = await with_dead_letters(site, admin, 40)

        def die(progress: RedriveProgress) -> None:
            if progress.seen == 37:
                raise KilledError

        async with site.admin() as doomed:
            with pytest.MonkeyPatch.context() as patch:
                calls: list[int] = []

                async def first_only(*args: Any) -> None:
                    """A killed process commits nothing when it ends."""
                    calls.append(args[-1])
                    if len(calls) == 1:
                        await commit_offset(*args)

                patch.setattr("skylark.admin.redrive.commit_offset", first_only)
                with pytest.raises(KilledError):
                    await doomed.dlq.redrive(GROUP, on_progress=die)
                assert calls == [32, 36]
        await indexed(admin, TOPIC, *ids[:37])
        assert (await admin.dlq.of(GROUP)).pending == 8
        report = await admin.dlq.redrive(GROUP)
        assert (report.counts.total, report.counts.already, report.counts.sent) == (8, 5, 3)
        assert await copies(admin) == once(*range(40))


async def test_letters_that_fail_are_reported_and_kept(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await with_dead_letters(site, admin, 8)
        await admin.topics.delete(TOPIC)
        report = await admin.dlq.redrive(GROUP)
        assert (report.counts.failed, report.stopped) == (8, None)
        assert not report.is_complete
        assert report.letters[0].problem is not None
        assert "topic orders does not exist" in report.letters[0].problem
        assert (await admin.dlq.of(GROUP)).pending == 8
        await admin.topics.create(TOPIC, queue_count=2)
        assert (await admin.dlq.redrive(GROUP)).counts.sent == 8


async def test_a_run_gives_up_when_nothing_can_be_sent(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await with_dead_letters(site, admin, 8)

        async def nobody(*_: Any) -> str:
            raise ConnectError("nobody there")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("skylark.admin.redrive_sender.DeadLetterSender.send", nobody)
            report = await admin.dlq.redrive(GROUP)
            letters = [letter async for letter in admin.dlq.messages(GROUP)]
            by_hand = await admin.dlq.redrive(GROUP, messages=letters)
        assert (report.counts.seen, report.counts.failed) == (5, 5)
        assert report.stopped == by_hand.stopped == "5 sends failed in a row"
        assert (await admin.dlq.redrive(GROUP)).counts.sent == 8


async def test_letters_of_a_topic_that_was_made_anew(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await with_dead_letters(site, admin, 3)
        await admin.dlq.redrive(GROUP)
        mark, topic = progress_group(GROUP), f"%DLQ%{GROUP}"
        (queue,) = await admin.offsets.committed(mark, topic)
        await admin.offsets.commit(mark, {queue: 99})
        assert (await admin.dlq.of(GROUP)).pending == 3
        assert (await admin.dlq.redrive(GROUP)).counts.already == 3


async def test_a_rate_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_site(tmp_path) as (site, admin):
        await with_dead_letters(site, admin, 5)
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        monkeypatch.setattr(admin.session.clock, "sleep", sleep)
        await admin.dlq.redrive(GROUP, rate=0.5)
        assert len(slept) == 4
        assert 6 < slept[-1] <= 8  # the fifth is due 8 s after the first
        for bad in ({"rate": 0}, {"limit": 0}, {"to": "nowhere"}):
            with pytest.raises((ClientError, InvalidParameterError)):
                await admin.dlq.redrive(GROUP, **bad)


async def test_a_namespace_has_its_own_letters(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        async with site.admin(namespace="ns") as inside:
            await with_dead_letters(site, inside, 2, namespace="ns")
            (found,) = await inside.dlq.all()
            assert (found.group, found.topic, found.count) == (GROUP, f"%DLQ%{GROUP}", 2)
            report = await inside.dlq.redrive(GROUP)
            assert [letter.topic for letter in report.letters] == [TOPIC, TOPIC]
            assert report.letters[0].queue == MessageQueue(
                topic=f"%DLQ%{GROUP}", broker_name="broker-a", queue_id=0
            )
            assert await copies(inside) == once(0, 1)
        groups = {group.group for group in (await admin.groups.all()).groups}
        assert {"ns%billing", "ns%REDRIVE-billing"} <= groups


def test_the_name_of_the_progress_fits() -> None:
    assert progress_group("g") == "REDRIVE-g"
    long = progress_group("x" * 120)
    assert len(long) == 120
    assert long != progress_group("x" * 119 + "y")
