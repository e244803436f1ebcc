"""Responses to pulls as whole frames: the same bytes as those encoded field by field."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.broker.api import PullResult
from skylark.broker.pull.handlers import FRAME_BODY_MAX, found_frame, position_ext
from skylark.net.dispatch import Interceptor
from skylark.net.write_queue import view_response
from skylark.store.message_reader import GetResult
from skylark.store.store_results import GetStatus
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.frame import encode_frame
from tests.unit.broker.stored import bodies_of, stored


@pytest.mark.parametrize("views", [[b"records"], [b"rec", b"ords"]])
def test_a_frame_equals_the_encoded_response(views: list[bytes]) -> None:
    topic, group = TopicConfig(topic_sys_flag=2), SubscriptionGroupConfig(group_sys_flag=1)
    found = GetResult(
        status=GetStatus.FOUND,
        next_offset=1 << 40,
        min_offset=3,
        max_offset=1 << 41,
        message_count=1,
        views=[memoryview(view) for view in views],
        size=7,
    )
    request = Command(code=RequestCode.PULL_MESSAGE, opaque=77)
    result = PullResult(
        ResponseCode.SUCCESS, "FOUND", 1, found.next_offset, 3, 1 << 41, topic, group, found
    )
    response = view_response(request, 0, "FOUND", ext=position_ext(result), leased=found)
    frame = found_frame(request, result)
    response.leased = None
    response.body = b"records"
    assert frame == encode_frame(response)
    assert found.views == ()  # released


class Seeing(Interceptor):
    """Wants to see all answers."""

    def __init__(self) -> None:
        self.seen: list[type] = []

    def before(self, _connection: object, _request: Command) -> None:
        return None

    def after(
        self, _connection: object, _request: Command, response: Command | None
    ) -> Command | None:
        self.seen.append(type(response))
        return response


def pulled_frames(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The frames that pulls are answered with from now on."""
    frames: list[bytes] = []

    def noted(*args: object) -> bytes:
        frames.append(found_frame(*args))  # type: ignore[arg-type]
        return frames[-1]

    monkeypatch.setattr("skylark.broker.pull.handlers.found_frame", noted)
    return frames


async def test_a_small_response_is_a_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stored(tmp_path) as world:
        frames = pulled_frames(monkeypatch)
        await world.send(body=b"small")
        await world.send(body=bytes(FRAME_BODY_MAX))
        assert bodies_of(await world.pull(0, maxMsgNums=1)) == [b"small"]
        assert len(frames) == 1
        assert len(bodies_of(await world.pull())) == 2
        assert (await world.pull(2, sysFlag=4)).code == 19
        assert len(frames) == 1


async def test_no_frames_with_interceptors_of_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stored(tmp_path) as world:
        frames = pulled_frames(monkeypatch)
        await world.send(body=b"small")
        with_frame = await world.pull()
        seeing = Seeing()
        dispatcher = world.features.endpoint.server.dispatcher
        dispatcher.interceptors = (*dispatcher.interceptors, seeing)
        without = await world.pull()
        assert (len(frames), len(seeing.seen)) == (1, 1)
        with_frame.opaque = without.opaque
        assert with_frame == without


async def test_a_held_pull_is_answered_by_a_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stored(tmp_path) as world:
        frames = pulled_frames(monkeypatch)
        world.add_topic("T", 1)
        waiting = await world.begin_pull()
        await world.send(body=b"late")
        await world.clock.drain()
        assert bodies_of(await waiting) == [b"late"]
        assert len(frames) == 1


async def test_a_one_way_pull_gets_no_frame(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send(body=b"unread")
        (connection,) = world.features.endpoint.server.connections
        size = connection.bytes_out
        request = Command(code=RequestCode.PULL_MESSAGE, ext=world.pull_request())
        await world.client.oneway(world.address, request)
        await world.clock.drain()
        assert connection.bytes_out == size
        assert bodies_of(await world.pull()) == [b"unread"]
