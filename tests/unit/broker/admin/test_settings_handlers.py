"""Settings by request: changed, refused, shown, saved."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from skylark.broker.config import ALWAYS_BLACK_LISTED
from skylark.wire.codes import RequestCode
from tests.unit.broker.world import SETTINGS_PATH, Peer, World


async def shown(peer: Peer) -> tuple[dict[str, str], int]:
    """All settings, and the counter of their version."""
    answer = await peer.call(RequestCode.GET_BROKER_CONFIG)
    assert (answer.code, answer.remark) == (0, None)
    assert set(answer.ext or {}) == {"version"}
    lines = (answer.body or b"").decode().splitlines()
    assert lines == sorted(lines)
    version = json.loads((answer.ext or {})["version"])
    assert set(version) == {"counter", "stateVersion", "timestamp"}
    return dict(line.split("=", 1) for line in lines), version["counter"]


@pytest.mark.spec("remoting.10.25")
@pytest.mark.serves(RequestCode.UPDATE_BROKER_CONFIG)
async def test_settings_change_at_once_unless_they_are_protected(world: World, peer: Peer) -> None:
    before, counter = await shown(peer)
    assert before["flushDiskType"] == "ASYNC_FLUSH"
    answer = await peer.call(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerConfigPath=x\n")
    assert (answer.code, answer.remark) == (16, "Can not update config in black list.")
    assert await shown(peer) == (before, counter)
    answer = await peer.call(RequestCode.UPDATE_BROKER_CONFIG, {}, b"flushDiskType=SYNC_FLUSH\n")
    assert (answer.code, answer.remark, answer.ext, answer.body) == (0, None, None, None)
    assert await shown(peer) == ({**before, "flushDiskType": "SYNC_FLUSH"}, counter + 1)
    saved = world.disk.read_file(Path(SETTINGS_PATH))
    assert b"flushDiskType=SYNC_FLUSH\n" in saved


async def test_what_we_can_do_is_shown(peer: Peer) -> None:
    settings, _ = await shown(peer)
    assert settings["transactionEndIdempotent"] == "true"


@pytest.mark.parametrize("path", sorted(ALWAYS_BLACK_LISTED))
async def test_no_path_and_no_code_to_be_run_can_be_changed(
    world: World, peer: Peer, path: str
) -> None:
    text = f"autoCreateTopicEnable=false\n{path}=/elsewhere\n".encode()
    answer = await peer.call(RequestCode.UPDATE_BROKER_CONFIG, {}, text)
    assert (answer.code, answer.remark) == (16, "Can not update config in black list.")
    assert world.live.current.auto_create_topic_enable
    assert world.live.version.counter == 0
    assert world.calls == []


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (b"brokerPermission=many\n", "1 setting is wrong: brokerPermission: 'many' is not an"),
        (b"a=\\u12\n", "string2Properties error: properties text, line 2: "),
    ],
)
async def test_bad_text_is_refused_as_a_whole(
    world: World, peer: Peer, text: bytes, remark: str
) -> None:
    body = b"autoCreateTopicEnable=false\n" + text
    answer = await peer.call(RequestCode.UPDATE_BROKER_CONFIG, {}, body)
    assert answer.code == 1
    assert (answer.remark or "").startswith(remark)
    assert world.live.current.auto_create_topic_enable
    assert world.calls == []


async def test_unknown_keys_and_no_text_are_accepted(world: World, peer: Peer) -> None:
    answer = await peer.call(RequestCode.UPDATE_BROKER_CONFIG, {}, b"noSuchKey=1\n")
    assert (answer.code, answer.remark) == (0, None)
    assert (await shown(peer))[1] == 1
    assert (await peer.call(RequestCode.UPDATE_BROKER_CONFIG, {})).code == 0
    assert (await shown(peer))[1] == 1


async def test_a_named_permission_registers_all_topics_again(world: World, peer: Peer) -> None:
    counter = world.topics.version.counter
    answer = await peer.call(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=4\n")
    assert answer.code == 0
    assert f"register all, version {counter + 1}" in world.calls
    assert world.live.current.broker_permission == 4
    world.calls.clear()
    answer = await peer.call(RequestCode.UPDATE_BROKER_CONFIG, {}, b"traceOn=false\n")
    assert world.calls == ["write broker.conf"]


async def test_settings_that_cannot_be_saved_are_not_acknowledged(world: World, peer: Peer) -> None:
    world.plan.at("files.write", nth=1, error=errno.ENOSPC)
    answer = await peer.call(RequestCode.UPDATE_BROKER_CONFIG, {}, b"traceOn=false\n")
    assert answer.code == 1
    assert (answer.remark or "").startswith("the change holds until restart")
    assert not world.live.current.trace_on
