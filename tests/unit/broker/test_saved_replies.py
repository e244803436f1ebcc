"""Answers that wait for the disk."""

from __future__ import annotations

import errno

import pytest

from skylark.broker.saved_replies import until_saved
from skylark.core.errors import BrokerError
from tests.unit.broker.world import World


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
