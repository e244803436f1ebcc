"""What a scenario with our client works with: Apache's servers, processes with clients, names.

Each scenario runs on a site of Apache's servers, by the release of its servers. Members of a group
may be processes with our client and with Java's. Their assignments are asked for with the real
mqadmin, which has the broker ask the members (307), so that all of them are seen by the same eyes.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from skylark.client.core.broker_calls import open_caller
from skylark.wire.codes import Perm, RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.fields import encode_ext
from skylark.wire.headers.admin import CreateTopicRequestHeader
from skylark.wire.headers.route import GetRouteInfoRequestHeader
from tests.interop.broker_scenarios.scene import QUEUES, SETTINGS, Scene, Site
from tests.interop.cluster import Cluster
from tests.interop.driver import Client, Delivery, java_client
from tests.interop.java import ApacheBroker, ApacheNamesrv
from tests.interop.process import ManagedProcess, poll_until
from tests.interop.toolchain import CURRENT, OLD_CLIENT, OLD_SERVERS

OURS: Final = "ours"
JAVA_5: Final = "java-5"
JAVA_4: Final = "java-4"

#: Members look at their group by themselves every 20 s; the broker's notice is quicker.
NOTICED_S: Final = 30.0


class OurProcess(ManagedProcess):
    """A process with our client, see ``driver.py`` here."""

    def __init__(self, *, folder: Path | None = None) -> None:
        super().__init__("skylark-client", folder=folder)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.interop.client_scenarios.driver"]

    def environment(self) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if "ROCKETMQ" not in name}
        paths = [str(Path(__file__).resolve().parents[3]), kept.get("PYTHONPATH", "")]
        # Broadcasting consumers keep their offsets below the home folder.
        home = {"HOME": str(self.folder)}
        return {**kept, **home, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def wait_ready(self) -> None:
        self.wait_for_line("ready")


@contextmanager
def running_client(kind: str, folder: Path) -> Iterator[Client]:
    """A process with the client of this kind."""
    if kind == OURS:
        with OurProcess(folder=folder) as process:
            yield Client(process)
        return
    version = CURRENT if kind == JAVA_5 else OLD_CLIENT
    with java_client(version, folder=folder) as client:
        yield client


@contextmanager
def running_site(
    folder: Path, version: str = CURRENT, settings: Mapping[str, object] | None = None
) -> Iterator[Site]:
    """Apache's name server and broker of one release, ready for topics."""
    with (
        ApacheNamesrv(folder=folder / "namesrv", heap_mb=256, version=version) as namesrv,
        ApacheBroker(
            namesrv.address,
            settings or APACHE_SETTINGS,
            folder=folder / "broker",
            heap_mb=384,
            version=version,
        ) as broker,
    ):
        yield ApacheSite(namesrv, broker)


class ApacheSite(Site):
    """Servers of Apache's."""

    def create_topic(self, topic: str, queue_count: int, *, order: bool = False) -> None:
        """Make a topic and wait for its route.

        A broker that has just started registers again and again, and may forget in between to tell
        of a topic: so it is told until the name server knows.
        """
        asyncio.run(self._create(topic, queue_count, order))

    async def _create(self, topic: str, queue_count: int, order: bool) -> None:
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queue_count,
            write_queue_nums=queue_count,
            perm=Perm.READ | Perm.WRITE,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=order,
        )
        create = RequestCode.UPDATE_AND_CREATE_TOPIC
        route = GetRouteInfoRequestHeader(topic=topic)
        deadline = time.monotonic() + NOTICED_S
        async with open_caller() as caller:
            while True:
                request = Command(code=create, ext=encode_ext(header))
                answer = await caller.call(self.broker.address, request, NOTICED_S)
                assert answer.code == ResponseCode.SUCCESS, answer
                request = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=encode_ext(route))
                found = await caller.call(self.namesrv.address, request)
                if found.code == ResponseCode.SUCCESS:
                    return
                assert time.monotonic() < deadline, f"no route of {topic}: {found.remark}"
                await asyncio.sleep(0.05)


#: What our own broker is set up with in the same scenarios, without what is ours alone.
APACHE_SETTINGS: Final = {
    name: value for name, value in SETTINGS.items() if not name.startswith("metrics")
}

SITES: Final = (CURRENT, OLD_SERVERS)


class Stage:
    """One scenario: a topic of its own, and any number of processes with clients.

    ``stage.ours`` and ``stage.java`` are scenes on the same topic and group, so that what one sends
    the other may consume.
    """

    def __init__(
        self, site: Site, client_of: Callable[[str], Client], cluster: Cluster, name: str
    ) -> None:
        self.site = site
        self.cluster = cluster
        self.topic = name
        self._client_of = client_of
        self._scenes: dict[str, Scene] = {}
        self._exit = ExitStack()

    @property
    def group(self) -> str:
        return f"{self.topic}_group"

    @property
    def ours(self) -> Scene:
        return self.scene(OURS)

    @property
    def java(self) -> Scene:
        return self.scene(JAVA_5)

    def scene(self, kind: str) -> Scene:
        """The scene of the client of this kind."""
        if kind not in self._scenes:
            self._scenes[kind] = self.scene_with(self._client_of(kind))
        return self._scenes[kind]

    def scene_with(self, client: Client) -> Scene:
        """A scene on the same topic and group with another process."""
        made = Scene(client, self.site, self.topic)
        self._exit.callback(made.close)
        return made

    def ask(self, command: str, **options: str | int) -> Any:
        """A command to our client that needs no producer or consumer."""
        return self.ours.call(command, "asker", namesrv=self.site.namesrv.address, **options)

    def committed(self, group: str | None = None) -> list[int | None]:
        """The offsets that the broker keeps for a group, queue by queue."""
        found: list[int | None] = self.ask("committed", **self._places(group))
        return found

    def commit(self, queue: int, offset: int, group: str | None = None) -> None:
        """Save an offset for a group, which need not exist."""
        broker = self.site.broker.address
        self.cluster.run(
            "updateSubGroup", "-b", broker, "-g", group or self.group, expect="success"
        )
        self.ask("commit-offset", queue=queue, offset=offset, **self._places(group))

    def _places(self, group: str | None) -> dict[str, str | int]:
        broker = self.site.broker
        return {
            "group": group or self.group,
            "topic": self.topic,
            "queues": QUEUES,
            "broker": broker.address,
            "broker_name": broker.broker_name,
        }

    def close(self) -> None:
        self._exit.close()

    # ---- groups ----------------------------------------------------------------------------------

    def assignments(self) -> dict[str, list[int]]:
        """The queues of the topic that each member of the group has, by its instance name.

        As ``mqadmin consumerStatus`` shows them: it has every member asked by the broker.
        """
        found: dict[str, list[int]] = {}
        shown = self.cluster.run("consumerConnection", "-g", self.group)
        for client_id in re.findall(r"^(\S+@\S+) +\S+:\d+ ", shown, re.MULTILINE):
            told = self.cluster.run(
                *("consumerStatus", "-g", self.group, "-i", client_id),
                expect="#Consumer MQ Detail#",
            )
            table = told.split("#Consumer MQ Detail#")[1].split("#Consumer Pop")[0]
            rows = re.findall(rf"^{re.escape(self.topic)} +\S+ +(\d+) ", table, re.MULTILINE)
            found[client_id.split("@")[1]] = sorted(map(int, rows))
        return found

    def wait_shares(self, queues: int, *shares: int) -> dict[str, list[int]]:
        """The assignments as soon as they have these sizes, largest first: all, and no two."""
        seen: dict[str, list[int]] = {}

        def shared() -> bool:
            seen.clear()
            seen.update(self.assignments())
            sizes = sorted(map(len, seen.values()), reverse=True)
            every = sorted(queue for mine in seen.values() for queue in mine)
            return sizes == list(shares) and every == list(range(queues))

        try:
            poll_until(shared, timeout_s=NOTICED_S, what=f"queues shared {shares}")
        except TimeoutError as error:
            raise AssertionError(f"{error}: {seen}") from None
        return seen


def wait_keys(
    got: Callable[[], Collection[Delivery]], wanted: set[str], timeout_s: float = NOTICED_S
) -> list[Delivery]:
    """All deliveries, as soon as every key is among them."""

    def missing() -> set[str]:
        return wanted - {each.keys for each in got()}

    try:
        poll_until(lambda: not missing(), timeout_s=timeout_s, what=f"{len(wanted)} messages")
    except TimeoutError as error:
        lost = sorted(missing())
        raise AssertionError(f"{error}: {len(lost)} missing: {lost[:10]}") from None
    return list(got())
