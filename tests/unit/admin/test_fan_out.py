"""The same question to several servers: answers and failures apart, a few at a time."""

from __future__ import annotations

import asyncio

import pytest

from skylark.admin.errors import PartialFailureError
from skylark.admin.fan_out import few_at_a_time, on_each
from skylark.core.errors import BrokerError, ConnectError, TransportError

SERVERS = {"a": "1.1.1.1:1", "b": "1.1.1.1:2", "c": "1.1.1.1:3"}


async def answer(name: str, address: str) -> str:
    if name == "b":
        raise ConnectError("nobody there")
    return f"{name} at {address}"


async def test_failures_stand_beside_results() -> None:
    done = await on_each(SERVERS, answer)
    assert done.some() == {"a": "a at 1.1.1.1:1", "c": "c at 1.1.1.1:3"}
    (failure,) = done.failures
    assert (failure.server, failure.address) == ("b", "1.1.1.1:2")
    assert (failure.problem, failure.retriable) == ("nobody there", True)
    with pytest.raises(PartialFailureError) as caught:
        done.all()
    assert str(caught.value) == "1 of 3 servers failed: b: nobody there"
    assert caught.value.results == ("a at 1.1.1.1:1", "c at 1.1.1.1:3")
    assert done.without(TransportError).all() == done.results
    assert len(done.without(BrokerError).failures) == 1


async def test_a_single_server_fails_with_its_own_error() -> None:
    done = await on_each({"b": "1.1.1.1:2"}, answer)
    with pytest.raises(ConnectError, match="nobody there"):
        done.all()
    with pytest.raises(ConnectError):
        done.some()


async def test_a_defect_is_no_failure_of_a_server() -> None:
    async def broken(name: str, address: str) -> str:
        raise ValueError(name + address)

    with pytest.raises(ValueError, match=r"a1\.1"):
        await on_each(SERVERS, broken)


async def test_not_more_than_allowed_are_under_way() -> None:
    now = most = 0

    async def work(number: int) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return number * 2

    assert await few_at_a_time(range(20), work, 3) == list(range(0, 40, 2))
    assert most == 3


async def test_the_first_error_ends_all() -> None:
    ended = []

    async def work(number: int) -> None:
        if number == 1:
            raise ConnectError("no")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    with pytest.raises(ConnectError):
        await few_at_a_time(range(3), work)
    assert ended == [0, 2]
