"""Every request that is meant for a broker is done, or refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark.broker.admin.refused_requests import ACCESS_CONTROL, REFUSED
from skylark.wire.catalogue import CATALOGUE
from skylark.wire.codes import RequestCode
from tests.unit.broker.stored import Stored, stored


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Stored]:
    async with stored(tmp_path) as running:
        yield running


async def test_no_request_is_forgotten(world: Stored) -> None:
    asked = {code for code, row in CATALOGUE.items() if "B" in row.receivers}
    assert world.features.endpoint.server.dispatcher.codes == asked


async def test_the_fast_port_lacks_what_may_be_held(world: Stored) -> None:
    both, fast = (server.dispatcher.codes for server in world.features.endpoint.servers)
    assert both - fast == {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    }


@pytest.mark.parametrize("code", REFUSED, ids=lambda code: code.name)
async def test_a_refusal_names_the_request(world: Stored, code: RequestCode) -> None:
    answer = await world.call(code, {})
    remark = answer.remark or ""
    if code in ACCESS_CONTROL:
        assert answer.code == 1
        assert remark.startswith(code.name)
    else:
        assert answer.code == 3
        assert remark.startswith(f" request type {code.value} not supported: {code.name}")
    assert remark.endswith(REFUSED[code])
