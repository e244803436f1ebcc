"""Refreshes the routes of a client: asks the name servers, compares, notifies listeners.

Runs on the control loop, which alone writes the route table. Callers that want the same route at
the same time share one question, and none of them can cancel it for the others; who comes while it
is under way, and learns that there is no such topic, asks again. Errors are for
those who ask; the periodic round logs them and goes on with the next topic.

A topic that the name servers do not know keeps its old route: it may have been created by a send
and not be announced yet, or its last broker may be restarting. While somebody waits for it, it is
asked for again after 1, 2, 4, 8 and 16 seconds; later the periodic round finds it, as all others.
Counterpart of Java's ``updateTopicRouteInfoFromNameServer``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from skylark.client.core.name_servers import NameServers
from skylark.client.core.route_cache import Route, RouteTable, default_route, make_route
from skylark.core.backoff import Backoff
from skylark.core.clock import Clock
from skylark.core.errors import NoNameServerError, SkylarkError
from skylark.core.lifecycle import Tasks, join
from skylark.core.names import is_retry_topic

log = logging.getLogger(__name__)

RETRY: Final = Backoff(first_s=1.0, most_s=16.0)
RETRIES: Final = 5

#: Topic, and for a topic that does not exist yet the number of its queues and its model.
_Question: TypeAlias = tuple[str, int, str]
_Outcome: TypeAlias = Route | SkylarkError | None


class RouteKeeper:
    """The one who writes a route table."""

    def __init__(
        self,
        routes: RouteTable,
        name_servers: NameServers,
        tasks: Tasks,
        changed: Callable[[Route], None],
        *,
        clock: Clock,
        is_wanted: Callable[[str], bool],
    ) -> None:
        """``changed`` is told of every route that differs from the one before.

        ``is_wanted``: whether somebody waits for a topic that does not exist yet.
        """
        self._routes = routes
        self._name_servers = name_servers
        self._tasks = tasks
        self._changed = changed
        self._clock = clock
        self._is_wanted = is_wanted
        self._under_way: dict[_Question, asyncio.Task[_Outcome]] = {}
        self._unknown: set[str] = set()  # topics that were not found last time

    async def refresh(self, topic: str) -> Route | None:
        """The route as of now, or the one before where the topic is unknown."""
        return await self._shared(topic, 0, "")

    async def refresh_default(self, topic: str, queue_count: int, model: str) -> Route | None:
        """The route that ``topic`` will have once a send has created it after ``model``."""
        return await self._shared(topic, queue_count, model)

    async def refresh_all(self, topics: Iterable[str]) -> None:
        """The periodic round."""
        for topic in topics:
            try:
                await self.refresh(topic)
            except NoNameServerError as error:
                log.warning("routes are not refreshed: %s", error)
                return  # it would be the same for all of them
            except SkylarkError as error:
                log.warning("the route of %s is not refreshed: %s", topic, error)

    async def _shared(self, topic: str, queue_count: int, model: str) -> Route | None:
        key = (topic, queue_count, model)
        if (asked_before := self._under_way.get(key)) is not None:
            route = _route_of(await join(asked_before))
            if route is not None:
                return route
            # The topic may be younger than that question.
        under_way = self._under_way.get(key)
        if under_way is None or under_way.done():  # its answer is from before we asked
            under_way = self._begin(key)
        return _route_of(await join(under_way))

    def _begin(self, key: _Question) -> asyncio.Task[_Outcome]:
        task = self._tasks.spawn(self._outcome(*key), name=f"route {key[0]}")
        self._under_way[key] = task
        task.add_done_callback(lambda ended: self._ended(key, ended))
        return task

    def _ended(self, key: _Question, task: asyncio.Task[_Outcome]) -> None:
        if self._under_way.get(key) is task:
            del self._under_way[key]

    async def _outcome(self, topic: str, queue_count: int, model: str) -> _Outcome:
        """The route or why there is none: callers may all have gone when the error comes."""
        try:
            return await self._ask(topic, queue_count, model)
        except SkylarkError as error:
            return error

    async def _ask(self, topic: str, queue_count: int, model: str) -> Route | None:
        data = await self._name_servers.route(model or topic)
        if data is None:
            self._not_found(topic, model)
            return self._routes.get(topic)
        self._unknown.discard(topic)
        route = default_route(topic, data, queue_count) if model else make_route(topic, data)
        if self._routes.update(route):
            log.info(
                "route of %s: %d queues to send to, %d to read, brokers %s",
                topic,
                len(route.publish),
                len(route.subscribe),
                ", ".join(route.brokers) or "none",
            )
            self._changed(route)
        return self._routes.get(topic)

    def _not_found(self, topic: str, model: str) -> None:
        if model or is_retry_topic(topic) or topic in self._unknown:
            return
        self._unknown.add(topic)
        wanted = self._is_wanted(topic)
        level = logging.WARNING if wanted else logging.INFO  # a send will create it
        log.log(level, "no name server knows topic %s yet", topic)
        if wanted:
            self._tasks.spawn(self._ask_again(topic), name=f"look for {topic}")

    async def _ask_again(self, topic: str) -> None:
        for failures in range(1, RETRIES + 1):
            await self._clock.sleep(RETRY.pause_s(failures))
            if topic not in self._unknown or not self._is_wanted(topic):
                return
            try:
                await self.refresh(topic)
            except SkylarkError as error:
                log.info("the route of %s is not found: %s", topic, error)


def _route_of(outcome: _Outcome) -> Route | None:
    if isinstance(outcome, SkylarkError):
        raise outcome
    return outcome
