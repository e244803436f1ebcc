"""Registration: announces this broker and its topics to the name servers.

:mod:`skylark.broker.topics.registration_plan` decides what to send to which name server and when;
:class:`Registration` sends it. Announcements (103, or 217 for single topics with
``enableSingleTopicRegister``; 322 to ask first) are one task per name server, so that a dead or
slow one does not delay the others. The results, changed topics, lost connections and another
``namesrvAddr`` (by request 25) go back into the plan. A stop unregisters the broker (104).

The answers contain

* for a slave, the address of its master (:attr:`Registration.master`), taken from the first name
  server of the list that knows one; while none answers, the last known address stays. A slave
  without a master requests the list of brokers every few seconds (106), and registers again as soon
  as its master is in it;
* the order configuration of the cluster, which marks topics as ordered.

``compressed`` in the header is true if the body is compressed. In Java 5.x it is not, and its name
server cannot read what its broker compresses. A table too large for one frame is sent in parts.

A problem that lasts is logged once. Counterpart of Java's ``BrokerOuterAPI`` and of the registering
half of ``BrokerController``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from typing import Any, Final

import msgspec

from skylark.broker.config import MASTER_ID, BrokerConfig
from skylark.broker.live_settings import LiveSettings
from skylark.broker.topics.registration_plan import ANSWER_MS, Announcement, RegistrationPlan
from skylark.broker.topics.topic_table import TopicChange, TopicTable
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import SkylarkError, broker_error
from skylark.core.lifecycle import Tasks
from skylark.core.names import ADDRESS_COUNT_MAX
from skylark.core.subscribers import Subscribers
from skylark.net.client import RemotingClient
from skylark.wire.bodies.common_body import KVTable
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.bodies.register import (
    RegisterBrokerBody,
    encode_register_body,
    register_body_crc,
)
from skylark.wire.bodies.route_body import ClusterInfo, QueueData, TopicRouteData
from skylark.wire.bodies.slave_sync_body import TopicConfigAndMappingSerializeWrapper
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.fields import decode_ext, encode_ext
from skylark.wire.headers import route as headers
from skylark.wire.headers.admin import TopicRequestHeader

logger = logging.getLogger(__name__)

#: How often connections to name servers, and the setting with their list, are checked; no I/O.
CHECK_MS: Final = 1_000
#: How often a slave without a master requests the list of brokers.
MASTER_CHECK_MS: Final = 3_000
UNREGISTER_TIMEOUT_S: Final = 3.0
SINGLE_TOPIC_TIMEOUT_S: Final = 3.0
#: About 5 MB as JSON, a third of the longest frame that is taken.
TOPICS_PER_REQUEST_MAX: Final = 20_000


class MasterAddress(msgspec.Struct, frozen=True):
    """The addresses of the master of a slave."""

    addr: str
    ha_addr: str | None = None


class Registration:
    """Keeps a broker registered, from ``start`` to ``stop``."""

    def __init__(
        self,
        live: LiveSettings,
        topics: TopicTable,
        client: RemotingClient,
        clock: Clock,
    ) -> None:
        self.master: MasterAddress | None = None
        #: Publishes :attr:`master` when it changes.
        self.master_changes: Subscribers[MasterAddress | None] = Subscribers()
        self._live = live
        self._topics = topics
        self._client = client
        self._clock = clock
        self._plan = RegistrationPlan(period_ms=live.current.register_period_ms)
        self._namesrv_addr: str | None = None  # the setting that the plan follows
        self._masters: dict[str, MasterAddress | None] = {}  # the last answer of each name server
        self._tasks = Tasks("registration", limit=3 * ADDRESS_COUNT_MAX)
        self._timer: TimerHandle | None = None
        self._waiting: list[
            tuple[int, asyncio.Future[None]]
        ] = []  # until so many changes are announced
        self._running = False
        self._started_ms = 0
        self._ready = asyncio.Event()
        self._master_check_ms = 0

    # --- start and stop ---

    async def start(self) -> None:
        """Begin to register; returns before any name server has answered."""
        self._running = True
        self._started_ms = self._clock.steady_ms()
        self._topics.changes.subscribe(self._topics_changed)
        self._step()
        if not self._plan.states:
            logger.warning(
                "no name server is configured (namesrvAddr): clients find no route to this broker"
            )

    async def stop(self) -> None:
        """Unregister from every name server that can be reached; takes 3 s at most."""
        self._running = False
        self._wake_waiting(self._clock.steady_ms())
        self._ready.set()
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.cancel_and_wait()
        reachable = [a for a in self._plan.states if self._client.connected(a)]
        await asyncio.gather(*map(self._unregister, reachable))

    @property
    def is_ready(self) -> bool:
        """Whether clients should be let in: a name server knows this broker.

        Also if there is none, or if none has answered for a while: clients may know the address.
        """
        return self._ready.is_set()

    async def ready(self) -> None:
        """Wait until :attr:`is_ready`, 3 s at most."""
        await self._ready.wait()

    async def announced(self) -> None:
        """Wait until the name servers know the topics as they are now.

        Waits no longer than 3 s for name servers that do not answer.
        """
        change_count, now_ms = self._plan.change_count, self._clock.steady_ms()
        if self._running and not self._plan.announced_to_all(change_count, now_ms):
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append((change_count, waiter))
            await waiter

    async def register_all(self) -> None:
        """Announce the whole table, with the permissions that the broker has now, and wait."""
        self._plan.all_changed(self._clock.steady_ms())
        self._step()
        await self.announced()

    # --- events ---

    @property
    def states(self) -> dict[str, bool | None]:
        """Each name server, and whether it knows this broker; None: not tried yet."""
        return self._plan.states

    def _topics_changed(self, change: TopicChange) -> None:
        self._plan.topics_deleted(change.deleted)
        if change.register:
            self._plan.topics_changed(change.register)
            self._step()

    def _step(self) -> None:
        """Send what is due by the plan, and set the timer for the next announcement."""
        if not self._running:
            return
        now_ms = self._clock.steady_ms()
        self._follow_settings(now_ms)
        for address in self._plan.registered:
            if not self._client.connected(address) and self._plan.connection_lost(address, now_ms):
                logger.info("lost the connection to name server %s, registering again", address)
        config = self._live.current
        bodies: Callable[[], list[bytes]]
        whole: Callable[[], list[bytes]] | None = None
        # A slave learns from the answer to its registration who its master is now.
        ask_first = not config.force_register and not config.is_slave
        for announcement in self._plan.due(now_ms, ask_first=ask_first):
            # The content is taken now: with a version that covers later changes, a name server
            # would ignore these when they come. It is encoded when needed.
            if not announcement.is_whole:
                bodies = partial(_encode, self._topics.registration(announcement.topics), config)
            else:
                whole = whole or cache(partial(_encode, self._topics.registration(), config))
                bodies = whole
            self._tasks.spawn(self._send(announcement, config, bodies), name=announcement.address)
        if config.is_slave and self.master is None and now_ms >= self._master_check_ms:
            self._master_check_ms = now_ms + MASTER_CHECK_MS
            for address in self._plan.registered:
                self._tasks.spawn(self._check_for_master(address), name=f"master at {address}")
        self._wake_waiting(now_ms)
        self._check_ready(now_ms)
        self._arm(now_ms)

    def _check_ready(self, now_ms: int) -> None:
        if self.is_ready:
            return
        if self._plan.registered or not self._plan.states:
            self._ready.set()
        elif now_ms >= self._started_ms + ANSWER_MS:
            logger.warning(
                "no name server has answered for %s s, clients find no route to this broker: %s",
                ANSWER_MS // 1000,
                ", ".join(self._plan.states),
            )
            self._ready.set()

    def _wake_waiting(self, now_ms: int) -> None:
        waiting, self._waiting = self._waiting, []
        for change_count, waiter in waiting:
            if self._running and not self._plan.announced_to_all(change_count, now_ms):
                self._waiting.append((change_count, waiter))
            elif not waiter.done():
                waiter.set_result(None)

    def _arm(self, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        times = [now_ms + CHECK_MS, self._plan.next_due_ms()]
        if not self.is_ready:
            times.append(self._started_ms + ANSWER_MS)
        if self._waiting:
            times.append(self._plan.overdue_ms(now_ms))
        wait_ms = max(0, min(it for it in times if it is not None) - now_ms)
        self._timer = self._clock.call_later(wait_ms / 1000, self._step)

    def _follow_settings(self, now_ms: int) -> None:
        config = self._live.current
        if config.namesrv_addr == self._namesrv_addr:
            return
        self._namesrv_addr = config.namesrv_addr
        gone = self._plan.set_servers(map(str, config.namesrv_addresses), now_ms)
        for address in gone:
            logger.info("name server %s is no longer in namesrvAddr", address)
            self._masters.pop(address, None)
            self._tasks.spawn(self._leave(address), name=f"leave {address}")

    # --- requests ---

    async def _send(
        self, announcement: Announcement, config: BrokerConfig, bodies: Callable[[], list[bytes]]
    ) -> None:
        address, topics = announcement.address, announcement.topics
        error: SkylarkError | None = None
        succeeded = False
        try:
            if topics is not None and config.enable_single_topic_register:
                await self._register_singly(address, config, topics)
            elif not (announcement.ask_first and await self._is_known(address, config)):
                for body in bodies():
                    await self._register(address, config, body)
            succeeded = True
        except SkylarkError as caught:
            error = caught
        finally:
            changed = self._plan.done(announcement, self._clock.steady_ms(), succeeded=succeeded)
            if succeeded and config.is_slave and self._masters.get(address) is None:
                self._plan.seek(address, self._clock.steady_ms())
            self._choose_master()
            self._log_outcome(address, succeeded, changed, error)
            self._step()

    async def _register(self, address: str, config: BrokerConfig, body: bytes) -> None:
        header = headers.RegisterBrokerRequestHeader(
            **_identity(config),
            ha_server_addr=config.ha_server_addr,
            enable_acting_master=False,
            compressed=config.compressed_register,
            body_crc32=register_body_crc(body),
        )
        request = Command(code=RequestCode.REGISTER_BROKER, ext=encode_ext(header), body=body)
        answer = await self._call(address, request, config.register_broker_timeout_mills / 1000)
        fields = decode_ext(headers.RegisterBrokerResponseHeader, answer.ext)
        self._masters[address] = (
            MasterAddress(fields.master_addr, fields.ha_server_addr) if fields.master_addr else None
        )
        if answer.body:
            self._topics.apply_order_table(decode_body(KVTable, answer.body).table)

    async def _register_singly(
        self, address: str, config: BrokerConfig, topics: tuple[TopicConfig, ...]
    ) -> None:
        """REGISTER_TOPIC_IN_NAMESRV (217) for each topic; it says nothing of the version."""
        for topic in self._topics.registration(topics).topic_config_table.values():
            queues = QueueData(
                broker_name=config.broker_name,
                read_queue_nums=topic.read_queue_nums,
                write_queue_nums=topic.write_queue_nums,
                perm=topic.perm,
                topic_sys_flag=topic.topic_sys_flag,
            )
            request = Command(
                code=RequestCode.REGISTER_TOPIC_IN_NAMESRV,
                ext=encode_ext(TopicRequestHeader(topic=topic.topic_name)),
                body=encode_body(TopicRouteData(queue_datas=[queues])),
            )
            await self._call(address, request, SINGLE_TOPIC_TIMEOUT_S)

    async def _is_known(self, address: str, config: BrokerConfig) -> bool:
        """QUERY_DATA_VERSION (322): whether the name server has our version of the table.

        False if it does not answer: then the whole table is sent.
        """
        header = headers.BrokerRequestHeader(**_identity(config))
        request = Command(
            code=RequestCode.QUERY_DATA_VERSION,
            ext=encode_ext(header),
            body=encode_body(self._topics.version),
        )
        try:
            answer = await self._call(address, request, config.register_broker_timeout_mills / 1000)
            return not decode_ext(headers.QueryDataVersionResponseHeader, answer.ext).changed
        except SkylarkError:
            return False

    async def _check_for_master(self, address: str) -> None:
        """GET_BROKER_CLUSTER_INFO (106); register again if the master is in the list."""
        request = Command(code=RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            answer = await self._call(address, request, MASTER_CHECK_MS / 1000)
            brokers = decode_body(ClusterInfo, answer.body or b"{}").broker_addr_table
        except SkylarkError as error:
            logger.debug("name server %s does not send the list of brokers: %s", address, error)
            return
        own = brokers.get(self._live.current.broker_name)
        if own is not None and MASTER_ID in own.broker_addrs and self.master is None:
            self._plan.all_changed(self._clock.steady_ms())
            self._step()

    async def _unregister(self, address: str) -> None:
        config = self._live.current
        header = headers.BrokerRequestHeader(**_identity(config))
        request = Command(code=RequestCode.UNREGISTER_BROKER, ext=encode_ext(header))
        try:
            await self._call(address, request, UNREGISTER_TIMEOUT_S)
        except SkylarkError as error:
            logger.warning("cannot unregister from name server %s: %s", address, error)
        else:
            logger.info("unregistered from name server %s", address)

    async def _leave(self, address: str) -> None:
        if self._client.connected(address):
            await self._unregister(address)
            self._client.disconnect(address)

    async def _call(self, address: str, request: Command, timeout_s: float) -> Command:
        answer = await self._client.call(address, request, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer.code, answer.remark or f"code {answer.code}")
        return answer

    # --- results ---

    def _choose_master(self) -> None:
        registered = self._plan.registered
        if not registered:
            return  # no name server answers: keep the last known address
        known = (self._masters.get(address) for address in registered)
        master = next(filter(None, known), None)
        if master != self.master:
            self.master = master
            logger.info("the master is now %s", "unknown" if master is None else master.addr)
            self.master_changes.publish(master)

    def _log_outcome(
        self, address: str, succeeded: bool, changed: bool, error: SkylarkError | None
    ) -> None:
        if succeeded:
            level = logging.INFO if changed else logging.DEBUG
            logger.log(level, "registered with name server %s", address)
        elif error is not None:
            level = logging.WARNING if changed else logging.DEBUG
            logger.log(level, "cannot register with name server %s, will retry: %s", address, error)


def _identity(config: BrokerConfig) -> dict[str, Any]:
    """The header fields by which a name server knows this broker."""
    return {
        "broker_name": config.broker_name,
        "broker_addr": config.broker_addr,
        "cluster_name": config.broker_cluster_name,
        "broker_id": config.broker_id,
    }


def _encode(content: TopicConfigAndMappingSerializeWrapper, config: BrokerConfig) -> list[bytes]:
    """Bodies of 103: one, or several for a huge table."""
    rest = iter(content.topic_config_table.items())
    parts = [dict(islice(rest, TOPICS_PER_REQUEST_MAX))]
    while part := dict(islice(rest, TOPICS_PER_REQUEST_MAX)):
        parts.append(part)
    return [
        encode_register_body(
            RegisterBrokerBody(
                topic_config_serialize_wrapper=msgspec.structs.replace(
                    content, topic_config_table=part
                )
            ),
            compress=config.compressed_register,
        )
        for part in parts
    ]
