"""Fan-out: sends one request to several servers concurrently and collects results and failures.

Every broker has its own copy of a topic or group, so most admin functions send one request per
broker. :func:`on_each` does that with limited concurrency; the result keeps results and failures
apart. The caller decides what a failure means: a change needs all servers (:meth:`FannedOut.all`),
a query accepts some (:meth:`FannedOut.some`) and reports the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from skylark.admin.errors import PartialFailureError, ServerFailure
from skylark.core.errors import SkylarkError

T = TypeVar("T")
ItemT = TypeVar("ItemT")

#: Concurrent requests.
AT_ONCE: Final = 32


class FannedOut(Generic[T]):
    """The result or the failure of each server."""

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
        """The results of the servers that succeeded; raises like :meth:`all` if none did."""
        if not self.results:
            self.all()
        return self.results

    def without(self, kind: type[SkylarkError]) -> FannedOut[T]:
        """A copy without errors of one kind, for servers that have no data."""
        errors = {k: error for k, error in self.errors.items() if not isinstance(error, kind)}
        return FannedOut(self.results, errors, self._addresses)


async def on_each(
    servers: Mapping[str, str], work: Callable[[str, str], Awaitable[T]]
) -> FannedOut[T]:
    """Call ``work(name, address)`` for each server, some concurrently; results keep the order."""

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
    """Call ``work`` for every item, ``at_once`` concurrently; the first error cancels the rest."""
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
