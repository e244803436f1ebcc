"""Changes that need a store are acknowledged when the disk has them, and not if it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skylark.core.errors import StoreError
from skylark.wire.codes import RequestCode
from tests.unit.broker.stored import Stored, stored

RESET = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
CLONE = {"srcGroup": "g", "destGroup": "h", "topic": "T", "offline": "true"}
MODE = b'{"topic":"T","consumerGroup":"g","mode":"PULL"}'

CHANGES = [
    (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET, None, "consumerOffset.json"),
    (RequestCode.CLONE_GROUP_OFFSET, CLONE, None, "consumerOffset.json"),
    (RequestCode.SET_MESSAGE_REQUEST_MODE, None, MODE, "messageRequestMode.json"),
]


class Disk:
    """Stands before the files of the tables."""

    def __init__(self, world: Stored) -> None:
        self._save = world.features.saver.save
        self.is_free = asyncio.Event()
        self.is_broken = False
        self.written: list[str] = []

    async def save(self, file: Any, table: Any) -> None:
        await self.is_free.wait()
        if self.is_broken:
            raise StoreError("no space left")
        await self._save(file, table)
        self.written.append(file.name)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Stored]:
    async with stored(tmp_path) as running:
        running.add_topic("T", 1)
        for group in ("g", "h"):
            running.features.groups.table.find(group)
        running.features.groups.offsets.commit("g", "T", 0, 3)
        await running.clock.drain()
        yield running


@pytest.fixture
async def disk(world: Stored, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Disk]:
    disk = Disk(world)
    with monkeypatch.context() as patched:
        patched.setattr(world.features.saver, "save", disk.save)
        yield disk
        disk.is_free.set()


@pytest.mark.parametrize(("code", "ext", "body", "name"), CHANGES, ids=lambda case: str(case)[:30])
async def test_the_answer_waits_for_the_disk(
    world: Stored, disk: Disk, code: int, ext: dict[str, str] | None, body: bytes | None, name: str
) -> None:
    asking = asyncio.create_task(world.call(code, ext, body))
    await world.clock.drain()
    assert not asking.done()
    disk.is_free.set()
    assert (await asking).code == 0
    assert disk.written == [name]


@pytest.mark.parametrize(("code", "ext", "body", "name"), CHANGES, ids=lambda case: str(case)[:30])
async def test_what_is_not_on_disk_is_not_acknowledged(
    world: Stored, disk: Disk, code: int, ext: dict[str, str] | None, body: bytes | None, name: str
) -> None:
    disk.is_free.set()
    disk.is_broken = True
    answer = await world.call(code, ext, body)
    disk.is_broken = False
    assert answer.code == 1
    assert (answer.remark or "").startswith("the change holds until restart")
    assert name not in disk.written
