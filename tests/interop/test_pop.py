"""Pop consumers of ours on Apache's broker, Java's on ours, and both in one group.

The stores of a broker with messages in flight are handed from one to the other and back: what was
not acknowledged comes again there, what was does not.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from skylark import ClientError, ClientOptions, ConsumeFromWhere, DeadLetter, Message, RetryLater
from skylark.aio import LitePullConsumer, PopConsumer, Producer, PushConsumer
from skylark.client.errors import ReceiptExpiredError
from skylark.core.errors import NoRouteError
from tests.interop.broker_scenarios.scene import SETTINGS, Scene, Site
from tests.interop.broker_scenarios.scene import running_site as our_site
from tests.interop.client_scenarios.stage import JAVA_5, ApacheSite
from tests.interop.client_scenarios.stage import running_site as apache_site
from tests.interop.cluster import Cluster
from tests.interop.driver import Client
from tests.interop.java import ApacheBroker, MqAdmin
from tests.interop.ours import SkylarkBroker, SkylarkNamesrv

pytestmark = pytest.mark.interop

T = TypeVar("T")
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
#: A message that was given back, or not acknowledged, comes again within this and its time.
REVIVED_S = 20.0


@pytest.fixture(scope="module", params=["apache", "ours"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """Servers of Apache's, and of ours."""
    folder = tmp_path_factory.mktemp(f"pop-{request.param}")
    with apache_site(folder) if request.param == "apache" else our_site(folder) as running:
        yield running


@pytest.fixture
def place(site: Site, request: pytest.FixtureRequest) -> Place:
    """A topic and a group of its own."""
    name = request.node.originalname.removeprefix("test_")
    made = Place(site, f"pop_{name}")
    site.create_topic(made.topic, 4)
    return made


class Place:
    """Where one test works."""

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.topic = name
        self.group = f"{name}_group"
        self.options = ClientOptions(namesrv=site.namesrv.address)

    def run(self, work: Callable[[], Awaitable[T]], *, timeout_s: float = 120.0) -> T:
        async def bounded() -> T:
            return await asyncio.wait_for(_awaited(work()), timeout_s)

        return asyncio.run(bounded())

    async def send(self, count: int, first: int = 0) -> None:
        async with Producer(f"{self.topic}_p", self.options) as producer:
            await asyncio.gather(
                *(
                    producer.send(Message(self.topic, b"%d" % n, keys=[f"k-{n}"]))
                    for n in range(first, first + count)
                )
            )

    def consumer(self, **given: Any) -> PopConsumer:
        given.setdefault("consume_from_where", FIRST)
        return PopConsumer(self.group, self.options, **given).subscribe(self.topic)

    def push(self, **given: Any) -> PushConsumer:
        given.setdefault("consume_from_where", FIRST)
        return PushConsumer(self.group, self.options, mode="pop", set_mode=True, **given)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


async def received(
    consumer: PopConsumer, count: int, *, timeout_s: float = 30.0, ack: bool = True
) -> list[Any]:
    """Exactly so many messages."""
    found: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline:
        try:
            some = await consumer.receive(32, wait=1)
        except NoRouteError:  # a broker that has just started is not registered yet
            await passed(0.2)
            continue
        found += some
        if ack and some:
            await consumer.ack(some)
    assert len(found) == count, f"{len(found)} of {count}"
    return found


async def until(condition: Callable[[], object], *, timeout_s: float, what: str) -> float:
    """Wait; the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, what
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def passed(seconds: float) -> None:
    """A handler at work for so long."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:  # noqa: ASYNC110 - nothing else happens
        await asyncio.sleep(min(left, 1.0))


# ---- our consumers -------------------------------------------------------------------------------


def test_pop_consumer(place: Place) -> None:
    async def work() -> None:
        await place.send(60)
        async with place.consumer(invisible=8) as consumer:
            found = await received(consumer, 60, ack=False)
            assert {each.attempt for each in found} == {1}
            by_body = {int(each.body): each for each in found}
            again, longer = by_body[0], by_body[1]
            left = {by_body[n] for n in range(2, 6)}
            await again.nack(delay=1)
            await longer.extend(60)
            await consumer.ack([each for n, each in by_body.items() if n >= 6])
            repeated = await received(consumer, 5, timeout_s=8 + REVIVED_S)
            assert {int(each.body) for each in repeated} == {0, 2, 3, 4, 5}
            assert {each.attempt for each in repeated} == {2}
            with pytest.raises(ReceiptExpiredError):
                await consumer.ack(left)
            await longer.ack()
            assert await consumer.receive(wait=5) == []

    place.run(work)


def test_push_consumer(place: Place) -> None:
    seen: list[tuple[int, int]] = []

    async def handle(message: Any) -> None:
        number = int(message.body)
        seen.append((number, message.reconsume_times))
        if number == 7 and not message.reconsume_times:
            raise RetryLater()
        if number == 8:
            raise DeadLetter()
        if number == 9:
            await passed(12)  # longer than the invisible time: it is renewed

    async def work() -> None:
        await place.send(100)
        consumer = place.push(pop_invisible_time=5)
        consumer.subscribe(place.topic, handle)
        async with consumer:
            await until(lambda: len(seen) >= 101, timeout_s=10 + REVIVED_S, what=f"{len(seen)}")
            await until(lambda: not consumer.in_flight, timeout_s=15, what="in flight")
            assert consumer.stats.late == 0
        assert Counter(number for number, _ in seen) == Counter([*range(100), 7])
        dead = LitePullConsumer("pop_undertaker", place.options, consume_from_where=FIRST)
        async with dead.subscribe(f"%DLQ%{place.group}"):
            letters: list[bytes] = []
            while not letters:
                letters += [each.body for each in await dead.poll(5)]
            assert letters == [b"8"]

    place.run(work)


def test_a_stopped_consumer_gives_back_at_once(place: Place) -> None:
    seen: list[tuple[int, int]] = []

    async def hang(message: Any) -> None:
        await passed(300)

    async def handle(message: Any) -> None:
        seen.append((int(message.body), message.reconsume_times))

    async def work() -> None:
        await place.send(20)
        first = place.push(concurrency=2, await_termination=0)
        first.subscribe(place.topic, hang)
        await first.start()
        await until(lambda: first.in_flight == 20, timeout_s=30, what="in flight")
        second = place.push()
        second.subscribe(place.topic, handle)
        async with second:
            await first.stop()
            took_s = await until(lambda: len(seen) >= 18, timeout_s=30, what=f"{len(seen)} of 18")
            assert took_s <= 6, took_s
            assert {times for _, times in seen} == {0}  # no attempt is counted

    place.run(work)


def test_the_mode_of_the_group_decides(place: Place) -> None:
    async def work() -> None:
        consumer = PushConsumer(place.group, place.options, mode="pop", consume_from_where=FIRST)
        consumer.subscribe(place.topic, lambda message: None)
        with pytest.raises(ClientError, match="skylark group mode"):
            await consumer.start()
        seen: list[bytes] = []
        following = PushConsumer(place.group, place.options, mode="auto", consume_from_where=FIRST)
        following.subscribe(place.topic, lambda message: seen.append(message.body))
        await place.send(4)
        async with following:
            await until(lambda: len(seen) == 4, timeout_s=30, what="pulled")
            assert all(queue.queue_id >= 0 for queue in following.assignment)

    place.run(work)


# ---- Java's consumers and mqadmin ----------------------------------------------------------------


def test_java_and_python_members_share_a_group(
    place: Place, client_of: Callable[[str], Client], mqadmin: MqAdmin
) -> None:
    count, alone = 610, 10
    cluster = Cluster(mqadmin, place.site.namesrv.address)
    broker = place.site.broker.address
    cluster.run("updateSubGroup", "-b", broker, "-g", place.group, expect="success")
    cluster.run(
        *("setConsumeMode", "-b", broker, "-t", place.topic, "-g", place.group, "-m", "POP"),
        *("-q", "0"),
        expect="success",
    )
    scene = Scene(client_of(JAVA_5), place.site, place.topic)
    scene.group = place.group
    java = f"java-{broker}"  # the program keeps what consumers of a name got
    seen: list[tuple[int, int]] = []

    async def handle(message: Any) -> None:
        seen.append((int(message.body), message.reconsume_times))
        await passed(0.005)

    async def send_slowly() -> None:
        for first in range(alone, count, 20):
            await place.send(20, first)

    async def work() -> None:
        ours = PushConsumer(place.group, place.options, mode="pop", consume_from_where=FIRST)
        ours.subscribe(place.topic, handle)
        popping = place.consumer()
        async with ours, popping:
            sending = asyncio.ensure_future(send_slowly())

            def deliveries() -> list[tuple[int, int]]:
                theirs = [(int(each.body), each.times) for each in scene.got(java)]
                return seen + theirs

            deadline = time.monotonic() + 60
            while len({number for number, _ in deliveries()}) < count:
                assert time.monotonic() < deadline, len(deliveries())
                for message in await popping.receive(8, wait=0.2):
                    seen.append((int(message.body), message.reconsume_times))
                    await message.ack()
            await sending
            await passed(2)  # for what should not come
            times = Counter(deliveries())
            # Each delivery once: what came twice was a retry, with another number of attempts.
            assert max(times.values()) == 1, times.most_common(3)
            assert len(scene.got(java)) > alone
            progress = cluster.run("consumerProgress", "-g", place.group)
            assert place.topic in progress

    with ExitStack() as stack:
        stack.callback(scene.close)
        scene.push(java, by_broker="true")
        place.run(lambda: place.send(alone))
        scene.wait_got(java, count=alone)  # it takes seconds to begin
        place.run(work)


# ---- one store, two brokers ----------------------------------------------------------------------


@pytest.mark.parametrize("first", ["apache", "ours"])
@pytest.mark.parametrize("merging", ["false", "true"])
def test_messages_in_flight_are_handed_over_and_back(
    tmp_path: Path, first: str, merging: str
) -> None:
    settings = {**SETTINGS, "enablePopBufferMerge": merging, "brokerIP1": "127.0.0.1"}
    settings = {name: each for name, each in settings.items() if not name.startswith("metrics")}
    with SkylarkNamesrv(folder=tmp_path / "namesrv") as namesrv, ExitStack() as stack:
        apache = ApacheBroker(namesrv.address, settings, folder=tmp_path / "apache")
        ours = SkylarkBroker(namesrv.address, settings, folder=tmp_path / "ours", port=apache.port)
        ours.settings["storePathRootDir"] = ours.store = apache.store
        apache.store.mkdir(parents=True)
        stack.callback(apache.close)
        stack.callback(ours.close)
        one, other = (apache, ours) if first == "apache" else (ours, apache)
        one.start()
        place = Place(ApacheSite(namesrv, apache), "PopHandover")
        place.site.create_topic(place.topic, 2)  # both brokers listen on the same port
        place.run(lambda: _take(place, 30, 30, range(10), attempt=1))
        one.stop()
        other.start()
        # What was not acknowledged comes again, and nothing else.
        place.run(lambda: _take(place, 0, 20, range(10, 20), attempt=2))
        other.stop()
        one.start()
        place.run(lambda: _take(place, 0, 10, range(20, 30), attempt=3))


async def _take(place: Place, send: int, expected: int, acked: range, *, attempt: int) -> None:
    """Receive the messages that are to come, acknowledge some, and leave the others in flight."""
    if send:
        await place.send(send)
    async with place.consumer(invisible=12) as consumer:
        found = await received(consumer, expected, timeout_s=12 + 2 * REVIVED_S, ack=False)
        by_number = {int(each.body): each for each in found}
        assert len(by_number) == expected
        assert set(acked) <= set(by_number)
        assert {each.attempt for each in found} == {attempt}
        await consumer.ack([by_number[number] for number in acked])
        if expected == len(acked):
            assert await consumer.receive(wait=5) == []
