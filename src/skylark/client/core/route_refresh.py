"""Fetches the routes of a client from the name servers, and stores those that changed.

Runs on the control loop, the only writer of the route table. Callers that need the same route at
the same time share one request, and cancelling one of them does not cancel it. If that request
finds no such topic, callers that came after its start send another one. Errors go to the callers;
the periodic round logs them and continues with the next topic.

A topic that the name servers do not know keeps its old route: a send may have created it just now,
or its last broker may be restarting. If a consumer subscribes to it, a task asks again after 0.2,
0.4, 0.8 s and so on up to ``route_interval``, until the topic is found or no consumer wants it; the
periodic round leaves it out meanwhile. A consumer that starts asks before it has joined, so
:meth:`RouteKeeper.look_for` begins that task when it joins. Counterpart of Java's
``updateTopicRouteInfoFromNameServer``, which asks every 30 s only.
"""

from __future__ import annotations

import asyncio
import itertools
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

logger = logging.getLogger(__name__)

#: The first pause before the name servers are asked again about a topic that a consumer wants.
LOOK_FIRST_S: Final = 0.2

#: Topic, and for a topic that does not exist yet the number of its queues and its model.
_Request: TypeAlias = tuple[str, int, str]
_Outcome: TypeAlias = Route | SkylarkError | None


class RouteKeeper:
    """Fetches routes and writes them to a route table."""

    def __init__(
        self,
        routes: RouteTable,
        name_servers: NameServers,
        tasks: Tasks,
        changed: Callable[[Route], None],
        *,
        clock: Clock,
        is_wanted: Callable[[str], bool],
        interval_s: float,
    ) -> None:
        """``changed`` is called with every route that differs from the one before.

        ``is_wanted``: whether a consumer subscribes to a topic that may not exist yet;
        ``interval_s``: the time between two periodic rounds.
        """
        self._routes = routes
        self._name_servers = name_servers
        self._tasks = tasks
        self._changed = changed
        self._clock = clock
        self._is_wanted = is_wanted
        self._under_way: dict[_Request, asyncio.Task[_Outcome]] = {}
        self._look_again = Backoff(first_s=LOOK_FIRST_S, most_s=interval_s)
        self._unknown: set[str] = set()  # topics that were not found last time
        self._looked_for: set[str] = set()  # those of them for which a task asks again and again

    async def refresh(self, topic: str, queue_count: int = 0, model: str = "") -> Route | None:
        """The current route, or the old one if the topic is unknown.

        With ``model``: the route that ``topic`` will have once a send has created it after that.
        """
        key = (topic, queue_count, model)
        if (asked_before := self._under_way.get(key)) is not None:
            route = _route_of(await join(asked_before))
            if route is not None:
                return route
            # The topic may have been created after that request.
        under_way = self._under_way.get(key)
        if under_way is None or under_way.done():  # it began before this call
            under_way = self._begin(key)
        return _route_of(await join(under_way))

    async def refresh_all(self, topics: Iterable[str]) -> None:
        """The periodic round."""
        for topic in topics:
            if topic in self._looked_for:
                continue
            try:
                await self.refresh(topic)
            except NoNameServerError as error:
                logger.warning("cannot refresh routes: %s", error)
                return  # it would be the same for all of them
            except SkylarkError as error:
                logger.warning("cannot refresh the route of %s: %s", topic, error)

    def _begin(self, key: _Request) -> asyncio.Task[_Outcome]:
        task = self._tasks.spawn(self._outcome(*key), name=f"route {key[0]}")
        self._under_way[key] = task
        task.add_done_callback(lambda ended: self._ended(key, ended))
        return task

    def _ended(self, key: _Request, task: asyncio.Task[_Outcome]) -> None:
        if self._under_way.get(key) is task:
            del self._under_way[key]

    async def _outcome(self, topic: str, queue_count: int, model: str) -> _Outcome:
        """The route or the error as a value: when it fails, no caller may be left to raise it."""
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
            logger.info(
                "route of %s: %d queues to send to, %d to read, brokers %s",
                topic,
                len(route.publish),
                len(route.subscribe),
                ", ".join(route.brokers) or "none",
            )
            self._changed(route)
        return self._routes.get(topic)

    # ---- topics that do not exist yet ------------------------------------------------------------

    def look_for(self, topics: Iterable[str]) -> None:
        """A consumer has joined: look for those of its topics that were not found before."""
        for topic in topics:
            if topic in self._unknown:
                self._start_looking(topic)

    def _not_found(self, topic: str, model: str) -> None:
        if model or is_retry_topic(topic):  # a send, or the broker of the group, creates it
            return
        if topic not in self._unknown:
            self._unknown.add(topic)
            logger.debug("no name server knows topic %s", topic)
        self._start_looking(topic)

    def _start_looking(self, topic: str) -> None:
        if topic in self._looked_for or not self._is_wanted(topic):
            return
        self._looked_for.add(topic)
        if self._routes.get(topic) is None:
            logger.warning("topic %s does not exist yet, its consumers wait for it", topic)
        else:
            logger.warning("no name server knows topic %s any more", topic)
        self._tasks.spawn(self._look_for(topic), name=f"look for {topic}")

    async def _look_for(self, topic: str) -> None:
        try:
            for failures in itertools.count(1):
                await self._clock.sleep(self._look_again.pause_s(failures))
                if topic not in self._unknown or not self._is_wanted(topic):
                    return
                try:
                    await self.refresh(topic)
                except SkylarkError as error:
                    logger.info("cannot find the route of %s: %s", topic, error)
        finally:
            self._looked_for.discard(topic)


def _route_of(outcome: _Outcome) -> Route | None:
    if isinstance(outcome, SkylarkError):
        raise outcome
    return outcome
