"""Plans for topics and groups against two real brokers: difference, deed, the way back."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.admin.admin_client import Admin
from skylark.admin.apply import Change, Desired, GroupSpec, TopicSpec, apply_plan, check, make_plan
from skylark.admin.errors import NotFoundError, PartialFailureError
from skylark.admin.health import check_health
from skylark.core.errors import InvalidParameterError
from tests.unit.admin.sites import running_site


async def apply(admin: Admin, desired: Desired) -> Desired:
    """Carry out what is to be done; the way back."""
    plan = await make_plan(admin, desired)
    await apply_plan(admin, plan)
    assert (await make_plan(admin, desired)).changes == ()
    return plan.undo


async def parts(admin: Admin, topic: str) -> list[tuple[str, int, int, str, dict[str, str]]]:
    found = await admin.topics.describe(topic)
    return [
        (p.broker, p.read_queue_count, p.write_queue_count, p.perm, p.attributes)
        for p in found.parts
    ]


async def test_there_and_back_broker_by_broker(tmp_path: Path) -> None:
    async with running_site(tmp_path, broker_count=2) as (_, admin):
        await admin.topics.create("T", queue_count=2, broker="broker-a")
        await admin.topics.create("T", queue_count=3, broker="broker-b", perm="r")
        await admin.groups.create("g")
        before = await parts(admin, "T")
        desired = Desired(
            topics=(
                TopicSpec(name="T", write_queues=5, perm="rw", attributes={"message.type": "FIFO"}),
            ),
            groups=(GroupSpec(name="g", retry_max_times=3, consume_message_orderly=True),),
        )
        plan = await make_plan(admin, desired)
        shown = [(c.broker, [(f.field, f.old, f.new) for f in c.fields]) for c in plan.changes]
        assert shown[:2] == [
            ("broker-a", [("write_queues", 2, 5), ("attributes.message.type", None, "FIFO")]),
            (
                "broker-b",
                [
                    ("write_queues", 3, 5),
                    ("perm", "r", "rw"),
                    ("attributes.message.type", None, "FIFO"),
                ],
            ),
        ]
        undo = await apply(admin, desired)
        fifo = {"message.type": "FIFO"}
        assert await parts(admin, "T") == [
            ("broker-a", 2, 5, "rw", fifo),
            ("broker-b", 3, 5, "rw", fifo),
        ]
        configs = (await admin.groups.describe("g")).configs
        assert {(c.config.retry_max_times, c.config.consume_message_orderly) for c in configs} == {
            (3, True)
        }
        await apply(admin, undo)
        assert await parts(admin, "T") == before
        configs = (await admin.groups.describe("g")).configs
        assert {(c.config.retry_max_times, c.config.consume_message_orderly) for c in configs} == {
            (16, False)
        }


async def test_what_is_made_and_what_stays(tmp_path: Path) -> None:
    async with running_site(tmp_path, broker_count=2) as (_, admin):
        await admin.topics.create("T", broker="broker-a")
        plan = await make_plan(
            admin,
            Desired(
                topics=(TopicSpec(name="T"), TopicSpec(name="new", broker="broker-b", queues=1)),
                groups=(GroupSpec(name="g"),),
            ),
        )
        assert plan.stays == ("undo does not delete topic T on broker-b",)
        done: list[Change] = []
        await apply_plan(admin, plan, done.append)
        assert done == list(plan.changes)
        assert [part[0] for part in await parts(admin, "new")] == ["broker-b"]
        back = await make_plan(admin, plan.undo)
        assert [change.name for change in back.deletes] == ["new", "g"]
        await apply_plan(admin, back)
        assert await admin.topics.names() == ["T"]
        assert (await admin.groups.all()).groups == ()


async def test_what_cannot_be(tmp_path: Path) -> None:
    async with running_site(tmp_path, broker_count=2) as (site, admin):
        await admin.topics.create("T")
        with pytest.raises(NotFoundError, match="broker nobody does not exist"):
            await make_plan(admin, Desired(groups=(GroupSpec(name="g", broker="nobody"),)))
        await site.fall_silent("broker-b")
        with pytest.raises(PartialFailureError, match="broker-b"):
            await make_plan(admin, Desired(topics=(TopicSpec(name="T", queues=3),)))
        report = await check_health(admin.session)
        assert [(s.server, s.answer_ms is None) for s in report.servers[1:]] == [
            ("broker-a", False),
            ("broker-b", True),
        ]
        assert (report.is_healthy, report.has_name_servers) == (False, True)


def test_specs_that_contradict_themselves() -> None:
    for desired in (
        Desired(topics=(TopicSpec(name="T"), TopicSpec(name="T"))),
        Desired(topics=(TopicSpec(name="a b"),)),
        Desired(topics=(TopicSpec(name="T", queues=1, write_queues=2),)),
        Desired(groups=(GroupSpec(name="g", absent=True, retry_max_times=1),)),
    ):
        with pytest.raises(InvalidParameterError):
            check(desired)
    check(Desired(topics=(TopicSpec(name="T", broker="a"), TopicSpec(name="T", broker="b"))))
