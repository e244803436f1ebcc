"""Members of consumer groups with connections of their own, who answer what the broker asks."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.limits import NetLimits
from skylark.wire.bodies.heartbeat import SubscriptionData
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import encode_body
from tests.unit.broker.stored import Stored
from tests.unit.broker.world import consumer, heartbeat

#: None: stays silent.
Answer = Callable[[Command], Command | None]

ASKED = (
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
)


class Member:
    """One member; keeps the questions that came."""

    def __init__(self, world: Stored, client_id: str, answer: Answer) -> None:
        self.client_id = client_id
        self.questions: list[Command] = []
        self.notices: list[Command] = []  # that its group has changed
        self._world = world
        self._answer = answer
        dispatcher = Dispatcher()
        dispatcher.add_hot(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._told)
        for code in ASKED:
            dispatcher.add_hot(code, self._asked)
        self._client = RemotingClient(
            world.network,
            world.clock,
            limits=NetLimits(idle_timeout_s=1e9),
            dispatcher=dispatcher,
            language="JAVA",
        )

    def _told(self, _connection: Connection, notice: Command) -> None:
        self.notices.append(notice)

    def _asked(self, _connection: Connection, question: Command) -> Command | None:
        self.questions.append(question)
        return self._answer(question)

    async def join(self, group: str, *topics: str | SubscriptionData) -> None:
        subscriptions = [
            SubscriptionData(topic=topic, sub_string="*") if isinstance(topic, str) else topic
            for topic in topics
        ]
        body = encode_body(heartbeat(consumer(group, *subscriptions), client_id=self.client_id))
        request = Command(code=RequestCode.HEART_BEAT, ext={}, body=body)
        answer = await self._client.call(self._world.address, request, 1e6)
        assert answer.code == 0
        await self._world.clock.drain()

    def grow_old(self, group: str, version: int) -> None:
        """Have the broker believe that the client is of another version."""
        joined = self._world.features.groups.consumers.group(group)
        assert joined is not None
        for member in joined.members.values():
            if member.channel.client_id == self.client_id:
                member.channel = msgspec.structs.replace(member.channel, version=version)

    async def leave(self) -> None:
        await self._client.close()
        await self._world.clock.drain()


def silent(_question: Command) -> Command | None:
    return None


def answering(body: bytes, code: int = 0, remark: str | None = None) -> Answer:
    return lambda question: response_to(question, code, remark, body=body)
