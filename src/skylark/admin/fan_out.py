"""The same question to several servers at once, and what became of each.

A topic or a group exists on every broker by itself, so most of administration is one request per
broker. :func:`on_each` sends them, a few at a time; the result keeps answers and failures apart.
The caller says what a failure means: a change needs all (:meth:`FannedOut.all`), a question is
content with some (:meth:`FannedOut.some`) and shows who did not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from skylark.admin.errors import PartialFailureError, ServerFailure
from skylark.core.errors import SkylarkError

T = TypeVar("T")
ItemT = TypeVar("ItemT")

#: Requests under way at a time.
AT_ONCE: Final = 32


class FannedOut(Generic[T]):
    """What each server made of it."""

    def __init__(
        self, results: dict[str, T], errors: dict[str, SkylarkError], addresses: Mapping[str, str]
    ) -> None:
        self.results = results
        self.errors = errors
        self._addresses = addresses

    @property
    def failures(self) -> tuple[ServerFailure, ...]:
        return tuple(
            ServerFailure(
                server=server,
                address=self._addresses[server],
                problem=str(error),
                retriable=error.retriable,
            )
            for server, error in self.errors.items()
        )

    def all(self) -> dict[str, T]:
        """The results of all; raises PartialFailureError, or the error where there is just one."""
        if self.errors:
            if len(self._addresses) == 1:
                raise next(iter(self.errors.values()))
            raise PartialFailureError(self.failures, tuple(self.results.values()))
        return self.results

    def some(self) -> dict[str, T]:
        """The results of those who answered; raises as :meth:`all` does if nobody did."""
        if not self.results:
            self.all()
        return self.results

    def without(self, kind: type[SkylarkError]) -> FannedOut[T]:
        """The same with errors of one kind left out: servers that have nothing to say."""
        errors = {k: error for k, error in self.errors.items() if not isinstance(error, kind)}
        return FannedOut(self.results, errors, self._addresses)


async def on_each(
    servers: Mapping[str, str], work: Callable[[str, str], Awaitable[T]]
) -> FannedOut[T]:
    """``work(name, address)`` for each server, some at a time; results in their order."""

    async def one(item: tuple[str, str]) -> T | SkylarkError:
        try:
            return await work(*item)
        except SkylarkError as error:
            return error

    outcomes = await few_at_a_time(servers.items(), one)
    results: dict[str, T] = {}
    errors: dict[str, SkylarkError] = {}
    for server, outcome in zip(servers, outcomes, strict=True):
        if isinstance(outcome, SkylarkError):
            errors[server] = outcome
        else:
            results[server] = outcome
    return FannedOut(results, errors, servers)


async def few_at_a_time(
    items: Iterable[ItemT], work: Callable[[ItemT], Awaitable[T]], at_once: int = AT_ONCE
) -> list[T]:
    """``work`` for every item, at most ``at_once`` under way; the first error ends all."""
    permits = asyncio.Semaphore(at_once)

    async def one(item: ItemT) -> T:
        async with permits:
            return await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
