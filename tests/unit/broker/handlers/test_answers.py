"""Answers that many handlers give."""

from __future__ import annotations

import errno

import pytest

from skylark.broker.handlers.answers import UNSET_REMARK, success, until_saved
from skylark.core.errors import BrokerError
from skylark.wire.bodies.common import GroupList
from skylark.wire.command import Command
from skylark.wire.headers.offset import OffsetResponseHeader
from tests.unit.broker.handlers.world import World


def test_success_has_what_it_is_given() -> None:
    asked = Command(code=14, opaque=9)
    bare = success(asked)
    assert (bare.code, bare.opaque, bare.is_response) == (0, 9, True)
    assert (bare.remark, bare.ext, bare.body) == (None, None, None)
    full = success(
        asked,
        header=OffsetResponseHeader(offset=5),
        body=GroupList(group_list=["g"]),
        remark=UNSET_REMARK,
    )
    assert (full.ext, full.body) == ({"offset": "5"}, b'{"groupList":["g"]}')
    assert full.remark == "not set any response code"


async def test_an_answer_waits_for_all_its_tables(world: World) -> None:
    world.groups.find("g")
    world.offsets.commit("g", "T", 0, 5)
    world.saved.offsets.mark()
    await until_saved(world.saved.groups, world.saved.offsets)
    _, groups, offsets = world.after_power_loss()
    assert "g" in groups
    assert offsets.get("g", "T", 0) == 5


async def test_what_cannot_be_saved_is_said(world: World) -> None:
    world.plan.at("files.write", nth=1, error=errno.ENOSPC)
    world.groups.find("g")
    with pytest.raises(BrokerError) as caught:
        await until_saved(world.saved.groups)
    assert caught.value.code == 1
    assert caught.value.remark.startswith("the change holds until restart, it could not be saved: ")
    assert "No space left" in caught.value.remark
