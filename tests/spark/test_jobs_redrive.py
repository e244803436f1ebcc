"""``skylark job redrive``: where dead letters go, and with which properties. Without Spark."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylark import ClientOptions, DeadLetter, Message, MessageExt
from skylark.admin.admin_client import Admin
from skylark.aio import PushConsumer
from skylark.core.errors import ClientError, ConfigError
from skylark.spark.jobs.redrive_job import RedriveOptions, RedriveSummary, run
from skylark.wire.bodies.heartbeat import ConsumeFromWhere
from tests.unit.admin.sites import Site, bury, eventually, indexed, running_site

TOPIC = "orders"
COUNT = 100
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class Group:
    """A consumer that remembers what it got, and at first may let everything die."""

    def __init__(self, *, dies: bool = False) -> None:
        self.dies = dies
        self.seen: list[tuple[str, str, int]] = []  # body, topic, reconsume times

    async def handle(self, message: MessageExt) -> None:
        if self.dies:
            raise DeadLetter
        self.seen.append((message.body.decode(), message.topic, message.reconsume_times))


@asynccontextmanager
async def consuming(name: str, group: Group, options: ClientOptions) -> AsyncIterator[PushConsumer]:
    consumer = PushConsumer(name, options, consume_from_where=FIRST)
    consumer.subscribe(TOPIC, group.handle)
    async with consumer:
        yield consumer


async def send(site: Site, count: int) -> None:
    await site.send(
        *(Message(TOPIC, b"%d" % n, tag="AB"[n % 2], keys=[f"k{n % 10}"]) for n in range(count))
    )


async def stored(admin: Admin, topic: str) -> int:
    ranges = await admin.stats.topic(topic)
    return sum(queue.count for queue in ranges.queues)


@pytest.mark.spec("spark.9.34")
async def test_only_the_failed_group_gets_its_letters_again(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await admin.topics.create(TOPIC, queue_count=2)
        await send(site, COUNT)
        failing, other = Group(dies=True), Group()
        async with consuming("G1", failing, site.options()), consuming("G2", other, site.options()):

            async def all_dead() -> bool:
                found = {letters.group: letters.count for letters in await admin.dlq.all()}
                return found.get("G1") == COUNT and len(other.seen) == COUNT

            await eventually(all_dead, 60)
            failing.dies = False
            summary = await run(admin, RedriveOptions(group="G1"))
            assert (summary.sent, summary.failed, summary.to) == (COUNT, 0, "%RETRY%G1")
            assert summary.is_well

            async def all_back() -> bool:
                return len(failing.seen) >= COUNT

            await eventually(all_back, 60)
        wanted = Counter((str(n), TOPIC, 0) for n in range(COUNT))
        assert Counter(failing.seen) == wanted
        assert Counter(other.seen) == wanted  # once, when they were new
        assert await stored(admin, TOPIC) == COUNT
        again = await run(admin, RedriveOptions(group="G1"))
        assert (again.letters, again.sent) == (0, 0)


async def dead(site: Site, admin: Admin, group: str, count: int) -> None:
    """Dead letters of a group without members."""
    await admin.topics.create(TOPIC, queue_count=1)
    await admin.topics.create(f"%RETRY%{group}", queue_count=1)
    await send(site, count)
    messages = [message async for message in admin.messages.between(TOPIC)]
    for message in messages:
        await bury(admin, group, message)
    await indexed(admin, f"%DLQ%{group}", *(message.msg_id for message in messages))


async def test_filters_choose_letters_and_a_dry_run_sends_none(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await dead(site, admin, "G", 20)

        async def redrive(**given: object) -> RedriveSummary:
            return await run(admin, RedriveOptions(group="G", **given))  # type: ignore[arg-type]

        plan = await redrive(dry_run=True, tags=frozenset("A"))
        assert (plan.letters, plan.sent, plan.filtered) == (20, 10, 10)
        old = await redrive(dry_run=True, older_than_ms=3_600_000)
        young = await redrive(dry_run=True, younger_than_ms=3_600_000, keys=frozenset({"k3"}))
        assert (old.sent, young.sent) == (0, 2)
        assert await stored(admin, "%RETRY%G") == 0
        first = await redrive(limit=5)
        assert (first.sent, first.stopped, first.is_well) == (
            5,
            "the limit of 5 messages is reached",
            True,
        )
        rest = await redrive(to_original=True)
        assert (rest.sent, rest.to) == (15, "original topics")
        assert (await stored(admin, "%RETRY%G"), await stored(admin, TOPIC)) == (5, 35)


async def test_a_group_that_consumes_in_order_is_refused(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await dead(site, admin, "G", 2)
        group = Group()
        consumer = PushConsumer("G", site.options(), consume_from_where=FIRST)
        consumer.subscribe(TOPIC, group.handle, orderly=True)
        async with consumer:

            async def works() -> bool:
                return len(group.seen) == 2

            await eventually(works, 30)
            with pytest.raises(ClientError, match="group G consumes in order") as refused:
                await run(admin, RedriveOptions(group="G"))
            assert "--to-original" in str(refused.value)
            original = await run(admin, RedriveOptions(group="G", to_original=True))
            assert original.sent == 2


async def test_a_write_only_dead_letter_topic_is_made_readable(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await dead(site, admin, "G", 3)
        await admin.topics.update("%DLQ%G", perm="w")

        async def is_hidden() -> bool:
            (data,) = (await admin.topics.route("%DLQ%G")).queue_datas
            return data.perm == 2

        await eventually(is_hidden)
        with pytest.raises(ClientError, match="is not readable"):
            await run(admin, RedriveOptions(group="G", dry_run=True))
        for _ in range(100):  # the name server hears of it a little later
            try:
                summary = await run(admin, RedriveOptions(group="G"))
                break
            except ClientError:
                await asyncio.sleep(0.05)
        assert summary.sent == 3


def test_wrong_options() -> None:
    with pytest.raises(ConfigError, match="no letter is older"):
        RedriveOptions(group="G", older_than_ms=5, younger_than_ms=5)
    with pytest.raises(ConfigError, match="a b"):
        RedriveOptions(group="a b")
