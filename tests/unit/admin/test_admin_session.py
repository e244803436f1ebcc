"""What admin functions ask by: a dead server is waited for once in a question of many requests."""

from __future__ import annotations

import pytest

from skylark.admin.admin_session import AskingOnce
from skylark.core.errors import ConnectError, ConnectionClosedError, RequestTimeoutError
from skylark.wire.command import Command


class Server:
    """Counts who is asked; answers, or raises what it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.told: list[str] = []
        self.errors: dict[str, Exception] = {}

    async def call(self, address: str, request: Command, timeout_s: float = 3.0) -> Command:
        del timeout_s
        self.asked.append(address)
        if address in self.errors:
            raise self.errors[address]
        return request

    async def oneway(self, address: str, request: Command, timeout_s: float = 3.0) -> None:
        del request, timeout_s
        self.told.append(address)


@pytest.mark.parametrize("error", [ConnectError("no"), RequestTimeoutError("late")])
async def test_who_did_not_answer_is_not_asked_again(error: Exception) -> None:
    server, request = Server(), Command(code=1)
    server.errors["b:1"] = error
    caller = AskingOnce(server)
    for _ in range(3):
        assert await caller.call("a:1", request) is request
        with pytest.raises(type(error)) as caught:
            await caller.call("b:1", request)
        assert caught.value is error
    assert server.asked == ["a:1", "b:1", "a:1", "a:1"]


async def test_a_connection_that_broke_is_tried_again() -> None:
    server, request = Server(), Command(code=1)
    server.errors["a:1"] = ConnectionClosedError("gone")
    caller = AskingOnce(server)
    with pytest.raises(ConnectionClosedError):
        await caller.call("a:1", request)
    server.errors.clear()
    assert await caller.call("a:1", request) is request
    await caller.oneway("a:1", request)
    assert server.told == ["a:1"]
