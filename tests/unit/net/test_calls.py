"""Responses to calls: each call ends once, by its response, timeout, cancellation or close."""

from __future__ import annotations

import asyncio

import pytest

from skylark.core.errors import ConnectionClosedError, RequestTimeoutError
from skylark.net.calls import ResponseFutures
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.command import Command
from skylark.wire.exchange import OpaqueCounter
from skylark.wire.fields import INT32_MAX


async def test_answers_timeouts_and_those_given_up() -> None:
    clock = VirtualClock()
    expired: list[float] = []
    calls = ResponseFutures(clock, OpaqueCounter(5), lambda: expired.append(len(calls)))
    calls.peer = "10.0.0.1:10911"
    futures = [calls.add(calls.new_opaque(), timeout_s) for timeout_s in (3.0, 1.0, 2.0)]
    assert len(calls) == 3
    assert calls.settle(Command(opaque=7, remark="answer"))
    assert not calls.settle(Command(opaque=7)), "a second response matches no call"
    assert (await futures[2]).remark == "answer"
    assert calls.forget(5)
    assert not calls.forget(5)
    await clock.advance(seconds=1)
    with pytest.raises(RequestTimeoutError, match=r"no answer from 10.0.0.1:10911 in time"):
        await futures[1]
    assert (expired, len(calls), clock.timer_count) == ([0], 0, 0)
    assert not futures[0].done()


async def test_all_fail_with_their_connection() -> None:
    clock = VirtualClock()
    calls = ResponseFutures(clock, OpaqueCounter(), lambda: None)
    cancelled, waiting = (calls.add(calls.new_opaque(), 5.0) for _ in range(2))
    cancelled.cancel()
    calls.fail(ConnectionClosedError("gone"))
    with pytest.raises(ConnectionClosedError, match="gone"):
        await waiting
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert (len(calls), clock.timer_count) == (0, 0)


async def test_an_opaque_in_use_is_not_given_out_again() -> None:
    calls = ResponseFutures(VirtualClock(), OpaqueCounter(INT32_MAX), lambda: None)
    for opaque in (INT32_MAX, -INT32_MAX, -INT32_MAX + 1):
        calls.add(opaque, 5.0)
    # The numbers start over after the largest one, and leave out those that are taken.
    assert [calls.new_opaque() for _ in range(2)] == [-INT32_MAX - 1, -INT32_MAX + 2]
    calls.fail(ConnectionClosedError("gone"))
