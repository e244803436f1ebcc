"""Our client on brokers of Apache's that refuse, hang, are not safe, or are gone.

Items 10 to 13 of the client's chapter, as far as a real broker can be brought to it; answers
that only a script gives are shown by ``tests/unit/client``. These tests have brokers of their own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from skylark.client.core.client_message import Message, SendResult, SendStatus
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.hooks import SendContext
from skylark.client.producer.producer import Producer
from skylark.client.producer.producer_settings import ProducerKeywords
from skylark.core.errors import BrokerError, SendFailedError, SendTimeoutError
from skylark.wire.codes import ResponseCode
from tests.interop.client_scenarios.stage import SITES, ApacheSite
from tests.interop.cluster import Cluster
from tests.interop.java import ApacheBroker, ApacheNamesrv, MqAdmin
from tests.interop.toolchain import CURRENT

pytestmark = [pytest.mark.interop, pytest.mark.spec("client.8.40")]

COUNT = 40
QUEUES = 4


class Attempts:
    """Counts attempts to send, by the address of the broker."""

    def __init__(self) -> None:
        self.at: Counter[str] = Counter()

    def before_send(self, context: SendContext) -> None:
        self.at[context.broker_address] += 1


@dataclass(frozen=True)
class Pair:
    """Brokers a and b with one name server; topic names are those of the tests."""

    namesrv: ApacheNamesrv
    a: ApacheBroker
    b: ApacheBroker
    cluster: Cluster

    def options(self) -> ClientOptions:
        """Routes are looked up once: what changes later comes as a surprise."""
        return ClientOptions(namesrv=self.namesrv.address, route_interval=600.0)

    def create_topic(self, topic: str, *brokers: ApacheBroker) -> None:
        # A broker's own permission counts for topics of ordered messages only.
        for broker in brokers or (self.a, self.b):
            ApacheSite(self.namesrv, broker).create_topic(topic, QUEUES, order=True)

    @contextmanager
    def setting(self, broker: ApacheBroker, name: str, value: str, usual: str) -> Iterator[None]:
        """One setting of a running broker, for as long as the block."""
        self._set(broker, name, value)
        try:
            yield
        finally:
            self._set(broker, name, usual)

    def _set(self, broker: ApacheBroker, name: str, value: str) -> None:
        self.cluster.run(
            *("updateBrokerConfig", "-b", broker.address, "-k", name, "-v", value), expect="success"
        )


@pytest.fixture(scope="module", params=SITES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, mqadmin: MqAdmin
) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp(f"pair-{request.param}")
    small = {"version": request.param}
    with ExitStack() as stack:
        namesrv = stack.enter_context(
            ApacheNamesrv(folder=folder / "namesrv", heap_mb=256, **small)
        )
        a, b = (
            stack.enter_context(
                ApacheBroker(
                    namesrv.address,
                    {"brokerName": f"broker-{name}"},
                    folder=folder / name,
                    heap_mb=384,
                    **small,
                )
            )
            for name in "ab"
        )
        cluster = Cluster(mqadmin, namesrv.address)
        cluster.wait_brokers("broker-a", "broker-b", timeout_s=60)
        yield Pair(namesrv, a, b, cluster)


def name_of(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).replace("[", "-").replace(".", "_").removesuffix("]")


@pytest.fixture
def topic(pair: Pair, request: pytest.FixtureRequest) -> str:
    """A topic of four queues on each broker."""
    pair.create_topic(name_of(request))
    return name_of(request)


@pytest.fixture
def topic_on_a(pair: Pair, request: pytest.FixtureRequest) -> str:
    """A topic of four queues on broker a alone."""
    pair.create_topic(name_of(request), pair.a)
    return name_of(request)


def messages(topic: str) -> list[Message]:
    return [Message(topic, b"body", keys=[f"m-{number}"]) for number in range(COUNT)]


@pytest.mark.parametrize("pair", [CURRENT], indirect=True)
async def test_a_broker_that_refuses(pair: Pair, topic: str) -> None:
    """Item 10: an awaited send goes to the other broker; item 13: a submitted one fails.

    Brokers of 4.x cannot be told that a topic is ordered, and so never refuse in this way.
    """
    attempts, only_once = Attempts(), Attempts()
    async with (
        Producer("p", pair.options(), hooks=[attempts], topics=[topic], batching=False) as patient,
        Producer("q", pair.options(), hooks=[only_once], topics=[topic], batching=False) as hasty,
    ):
        with pair.setting(pair.b, "brokerPermission", "4", "6"):
            results = [await patient.send(message) for message in messages(topic)]
            assert {result.queue.broker_name for result in results} == {"broker-a"}
            # In turn: each second queue is of broker b, and refused once. Where the queues of a
            # broker stand together that is every fourth message, and the first four may be of a.
            refused = attempts.at[pair.b.address]
            assert COUNT // 4 - 1 <= refused <= COUNT
            assert attempts.at == {pair.a.address: COUNT, pair.b.address: refused}

            futures = [await hasty.submit(message) for message in messages(topic)]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            failed = [each for each in outcomes if not isinstance(each, SendResult)]
            assert len(failed) == only_once.at[pair.b.address] == COUNT // 2
            assert only_once.at.total() == COUNT
            for error in failed:
                assert isinstance(error, BrokerError)
                assert error.code == ResponseCode.NO_PERMISSION


async def test_a_message_that_no_broker_takes(pair: Pair, topic: str) -> None:
    """Item 10: answer 13 is raised at once."""
    attempts = Attempts()
    limits: ProducerKeywords = {"max_message_size": 16 << 20, "compress_over": 16 << 20}
    async with Producer("p", pair.options(), hooks=[attempts], **limits) as producer:
        with pytest.raises(BrokerError) as raised:
            await producer.send(Message(topic, bytes(5 << 20)))
        assert raised.value.code == ResponseCode.MESSAGE_ILLEGAL
        assert attempts.at.total() == 1


async def test_a_broker_that_never_answers(pair: Pair, topic_on_a: str) -> None:
    """Item 11: a stopped process keeps its connections and says nothing."""
    name = topic_on_a
    attempts, short = Attempts(), Attempts()
    settings: ProducerKeywords = {"topics": [name], "batching": False}
    impatient: ProducerKeywords = {**settings, "attempt_timeout": 0.5}
    async with (
        Producer("p", pair.options(), hooks=[attempts], **settings) as patient,
        Producer("q", pair.options(), hooks=[short], **impatient) as hasty,
    ):
        for producer in (patient, hasty):
            assert (await producer.send(Message(name, b"first"))).status is SendStatus.SEND_OK
        os.kill(pair.a.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(SendTimeoutError):
                await patient.send(Message(name, b"lost"))
            assert 2.9 <= time.monotonic() - began <= 4.0
            assert attempts.at == {pair.a.address: 2}
            with pytest.raises(SendFailedError) as raised:
                await hasty.send(Message(name, b"lost"))
            assert raised.value.response_code == 10002
            assert short.at == {pair.a.address: 4}
        finally:
            os.kill(pair.a.pid, signal.SIGCONT)
        # It goes on by itself, on the same connections or new ones.
        for producer in (patient, hasty):
            sent = await producer.send(Message(name, b"again"), timeout=15.0)
            assert sent.status is SendStatus.SEND_OK


async def test_a_broker_that_is_gone(pair: Pair, topic: str) -> None:
    """Item 13: no connection to one broker, and the other one takes everything; last, it stays."""
    attempts = Attempts()
    settings: ProducerKeywords = {"topics": [topic], "batching": False, "send_timeout": 10.0}
    async with Producer("p", pair.options(), hooks=[attempts], **settings) as producer:
        pair.b.kill()
        try:
            futures = [await producer.submit(message) for message in messages(topic)]
            results = await asyncio.gather(*futures)
            assert {result.queue.broker_name for result in results} == {"broker-a"}
            assert {result.queue.queue_id for result in results} <= set(range(QUEUES))
            assert all(result.status is SendStatus.SEND_OK for result in results)
            assert attempts.at[pair.a.address] == COUNT
            results = [await producer.send(message) for message in messages(topic)]
            assert {result.queue.broker_name for result in results} == {"broker-a"}
        finally:
            pair.b.start()
        pair.cluster.wait_brokers("broker-a", "broker-b", timeout_s=60)


@pytest.mark.parametrize("release", SITES)
async def test_stored_but_not_safe(release: str, tmp_path: Path) -> None:
    """Item 12: a broker that waits for its disk, but not long enough, answers 10.

    Its disk may be faster than the thread that looks at the clock: then it answers 0 now and then.
    """
    hasty = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": 0}
    with (
        ApacheNamesrv(folder=tmp_path / "namesrv", heap_mb=256, version=release) as namesrv,
        ApacheBroker(
            namesrv.address, hasty, folder=tmp_path / "broker", heap_mb=384, version=release
        ) as broker,
    ):
        await asyncio.to_thread(ApacheSite(namesrv, broker).create_topic, "T", QUEUES)
        options = ClientOptions(namesrv=namesrv.address)
        for again, expected in ((False, 1), (True, 3)):
            attempts = Attempts()
            async with Producer(
                "p", options, hooks=[attempts], retry_another_broker=again, send_timeout=10.0
            ) as producer:
                for _ in range(100):
                    attempts.at.clear()
                    result = await producer.send(Message("T", b"x"))
                    if result.status is not SendStatus.SEND_OK:
                        break
            assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
            assert attempts.at == {broker.address: expected}
