"""Hooks of pull consumers: what they see of batches, and what they take away."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.client.consumer.classic_pull_consumer import PullConsumer
from skylark.client.consumer.lite_pull.lite_pull_consumer import LitePullConsumer
from skylark.client.core.client_message import MessageExt
from skylark.client.core.hooks import ConsumeContext
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumeFromWhere
from tests.unit.client.consumer.pull_world import PullWorld, bodies, pull_world, queue

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class Hook:
    """Keeps what it sees; takes away messages with this body."""

    def __init__(self, unwanted: bytes | None = None) -> None:
        self.seen: list[tuple[str, list[bytes], bool, str | None, str | None]] = []
        self.contexts: list[ConsumeContext] = []
        self.unwanted = unwanted

    def _note(self, when: str, context: ConsumeContext) -> None:
        messages = list(context.messages)
        self.seen.append(
            (when, bodies(messages), context.success, context.status, context.return_type)
        )
        self.contexts.append(context)

    def before_consume(self, context: ConsumeContext) -> None:
        self._note("before", context)

    def after_consume(self, context: ConsumeContext) -> None:
        self._note("after", context)

    def filter_messages(self, queue: MessageQueue, messages: list[MessageExt]) -> None:
        assert queue.topic == "T"
        messages[:] = [each for each in messages if each.body != self.unwanted]


class Broken:
    def before_consume(self, context: ConsumeContext) -> None:
        raise ZeroDivisionError

    def filter_messages(self, queue: MessageQueue, messages: list[MessageExt]) -> None:
        raise ZeroDivisionError


async def started(w: PullWorld, *hooks: object) -> LitePullConsumer:
    lite = LitePullConsumer(
        "lg", w.options(), hooks=hooks, runtime=w.runtime, consume_from_where=FIRST
    )
    await w.finish(lite.start())
    lite.assign(await w.finish(lite.fetch_queues("T")))
    for each in lite.assignment:
        await w.finish(lite.seek_to_begin(each))
    return lite


async def test_hooks_see_a_batch_when_it_is_handed_out(tmp_path: Path) -> None:
    hook = Hook()
    async with pull_world(tmp_path) as w:
        await w.send(b"a", b"b")
        lite = await started(w, hook)
        assert await w.finish(lite.poll(0.1)) or await w.finish(lite.poll(5))
        assert hook.seen == [
            ("before", [b"a", b"b"], False, None, None),
            ("after", [b"a", b"b"], True, "CONSUME_SUCCESS", "SUCCESS"),
        ]
        before, after = hook.contexts
        assert before is after
        assert (before.group, before.queue.topic) == ("lg", "T")
        assert before.client_id.endswith("@STREAM")
        assert await w.finish(lite.poll(0.1)) == []
        assert len(hook.seen) == 2  # nothing handed out, nothing to see
        await w.finish(lite.stop())


async def test_what_a_filter_takes_away_is_not_handed_out(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w:
        await w.send(b"a", b"no", b"b")
        lite = await started(w, Hook(unwanted=b"no"))
        assert bodies(await w.finish(lite.poll(5))) == [b"a", b"b"]
        await w.send(b"no")
        assert await w.finish(lite.poll(1)) == []
        await w.send(b"c")
        assert bodies(await w.finish(lite.poll(5))) == [b"c"]
        await w.finish(lite.stop())


async def test_a_hook_that_raises_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pull_world(tmp_path) as w:
        await w.send(b"a")
        lite = await started(w, Broken())
        assert bodies(await w.finish(lite.poll(5))) == [b"a"]
        await w.finish(lite.stop())
    assert caplog.text.count("> failed") == 2


async def test_hooks_of_the_classic_consumer_see_each_pull(tmp_path: Path) -> None:
    hook = Hook(unwanted=b"no")
    async with pull_world(tmp_path) as w:
        await w.send(b"a", b"no", b"b")
        classic = PullConsumer("cg", w.options(), hooks=[hook], runtime=w.runtime)
        await w.finish(classic.start())
        result = await w.finish(classic.pull(queue(), 0))
        assert (bodies(result.messages), result.next_offset) == ([b"a", b"b"], 3)
        assert hook.seen == [
            ("before", [b"a", b"b"], False, None, None),
            ("after", [b"a", b"b"], True, "CONSUME_SUCCESS", "SUCCESS"),
        ]
        assert (hook.contexts[0].group, hook.contexts[0].queue) == ("cg", queue())
        await w.finish(classic.pull(queue(), 3))
        assert len(hook.seen) == 2  # nothing came, nothing to see
        await w.finish(classic.stop())
